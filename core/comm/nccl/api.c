/* Opens NCCL. */
#include "core/comm/nccl/nccl.h"

#include <dlfcn.h>

typedef struct entry { const char *name; size_t at; } entry;

#define ENTRY(member, name) {name, offsetof(tide__nccl, member)}
static const entry entries[] = {
  ENTRY(get_version, "ncclGetVersion"), ENTRY(get_unique_id, "ncclGetUniqueId"),
  ENTRY(comm_init, "ncclCommInitRankConfig"), ENTRY(comm_split, "ncclCommSplit"),
  ENTRY(comm_user_rank, "ncclCommUserRank"), ENTRY(comm_count, "ncclCommCount"),
  ENTRY(comm_finalize, "ncclCommFinalize"), ENTRY(last_error, "ncclGetLastError"),
  ENTRY(comm_destroy, "ncclCommDestroy"), ENTRY(comm_abort, "ncclCommAbort"),
  ENTRY(comm_async_error, "ncclCommGetAsyncError"), ENTRY(error_string, "ncclGetErrorString"),
  ENTRY(group_start, "ncclGroupStart"), ENTRY(group_end, "ncclGroupEnd"),
  ENTRY(all_reduce, "ncclAllReduce"), ENTRY(reduce, "ncclReduce"),
  ENTRY(broadcast, "ncclBroadcast"), ENTRY(all_gather, "ncclAllGather"),
  ENTRY(reduce_scatter, "ncclReduceScatter"), ENTRY(send, "ncclSend"), ENTRY(recv, "ncclRecv"),
};
static const entry optional[] = {
  ENTRY(comm_register, "ncclCommRegister"), ENTRY(comm_deregister, "ncclCommDeregister"),
};

static int nccl_api_refuse(tide__nccl *l, char *msg, size_t n, const char *file, const char *why)
{
  snprintf(msg, n, "NCCL cannot be used: %s: %s", file, why);
  tide__nccl_close(l);
  return TIDE_E_UNSUPPORTED;
}

int tide__nccl_open(tide__nccl *l, const char *library, char *msg, size_t n)
{
  const char *file = library ? library : "libnccl.so.2";
  char why[64];
  memset(l, 0, sizeof *l);
  l->object = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!l->object) {
    snprintf(msg, n, "NCCL is not installed, or cannot be loaded: %s", dlerror());
    return TIDE_E_UNSUPPORTED;
  }
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    void *p = dlsym(l->object, entries[i].name);
    if (!p) {
      snprintf(why, sizeof why, "it has no %s", entries[i].name);
      return nccl_api_refuse(l, msg, n, file, why);
    }
    memcpy((char *)l + entries[i].at, &p, sizeof p);
  }
  for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
    void *p = dlsym(l->object, optional[i].name);
    memcpy((char *)l + optional[i].at, &p, sizeof p);
  }
  if (l->get_version(&l->version) == TIDE__NCCL_OK && l->version >= TIDE__NCCL_OLDEST)
    return TIDE_OK;
  snprintf(why, sizeof why, "version %d is older than 2.18", l->version);
  return nccl_api_refuse(l, msg, n, file, why);
}

void tide__nccl_close(tide__nccl *l)
{
  if (l->object) dlclose(l->object);
  memset(l, 0, sizeof *l);
}
