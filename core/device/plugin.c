/* Opens libtide_cuda.so beside libtide.so, else wherever the dynamic loader finds it.
 *
 * Keeps no state: dlopen counts, and an opened library stays loaded, so that kernels and the
 * driver's own threads never lose their code. A missing library is one sentence under E_DEVICE.
 */
#include "core/device/device.h"

#include <dlfcn.h>

static const char *const files[TIDE_NDEV] = {[TIDE_DEV_CUDA] = "libtide_cuda.so"};

/* Returns the folder of libtide.so with its slash, or "" if the loader does not know it. */
static void own_folder(char *out, size_t size)
{
  Dl_info info;
  out[0] = 0;
  if (!dladdr((void *)(uintptr_t)&tide_version, &info) || !info.dli_fname) return;
  const char *slash = strrchr(info.dli_fname, '/');
  size_t n = slash ? (size_t)(slash - info.dli_fname) + 1 : 0;
  if (n >= size) return;
  memcpy(out, info.dli_fname, n);
  out[n] = 0;
}

static void *open_file(const char *file)
{
  char path[4096];
  own_folder(path, sizeof path - strlen(file) - 1);
  if (path[0]) {
    strcat(path, file);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (lib) return lib;
    FILE *there = fopen(path, "rb"); /* a file that exists and does not load: report its error */
    if (there) {
      fclose(there);
      return NULL;
    }
  }
  return dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

const tide__plugin *tide__plugin_find(int device, char *why, size_t size)
{
  const char *file = device >= 0 && device < TIDE_NDEV ? files[device] : NULL;
  why[0] = 0;
  if (!file) return NULL;
  dlerror();
  void *lib = open_file(file);
  if (!lib) {
    const char *reason = dlerror();
    snprintf(why, size, "%s could not be opened (%s); build it with the CUDA toolkit: make cuda",
             file, reason ? reason : "unknown");
    return NULL;
  }
  tide__plugin_fn table = (tide__plugin_fn)(uintptr_t)dlsym(lib, "tide_plugin");
  const tide__plugin *p = table ? table() : NULL;
  if (p && p->size == sizeof *p && p->version == TIDE__PLUGIN_VERSION &&
      strcmp(p->library, tide_version()) == 0)
    return p;
  snprintf(why, size, "%s is of another version of tide than %s; build both together", file,
           tide_version());
  return NULL;
}

const tide__plugin *tide__plugin_open(tide_ctx *ctx, int device, const char *op)
{
  char why[512];
  const tide__plugin *p = tide__plugin_find(device, why, sizeof why);
  if (!p)
    tide__fail(ctx, TIDE_E_DEVICE, op, "device '%s' is not available: %s", tide_device_name(device),
               why);
  return p;
}
