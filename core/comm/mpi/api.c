/* See api.h. Nothing here is kept between calls but what a tide__mpi holds: whether MPI runs is
 * asked of MPI itself. Memory is malloc's, as it belongs to no context. */
#include "core/comm/mpi/api.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

typedef void (*symbol)(void);

/* The name that MPI_COMM_SELF gets when this process has given up, or when a call timed out. */
static const char given_up[] = "tide: requests were left", timed_out[] = "tide: a call timed out";

/* ---- what is looked up ----------------------------------------------------------------------- */

#define SYMBOLS(X)                                                                           \
  X(Init_thread) X(Initialized) X(Finalized) X(Finalize) X(Query_thread) X(Is_thread_main)   \
  X(Get_library_version) X(Get_processor_name) X(Error_string) X(Abort) X(Comm_dup)          \
  X(Comm_free) X(Comm_rank) X(Comm_size) X(Comm_set_errhandler) X(Comm_get_attr) X(Isend)    \
  X(Irecv) X(Iprobe) X(Test) X(Cancel) X(Comm_create_keyval) X(Comm_set_attr)                \
  X(Comm_set_name) X(Comm_get_name)

#define ID(name) SYM_##name,
enum { SYMBOLS(ID) NSYM };
#undef ID
#define NAME(name) "MPI_" #name,
static const char *const names[NSYM] = {SYMBOLS(NAME)};
#undef NAME

struct calls;

typedef struct lib {
  void *object;
  symbol sym[NSYM];
  const struct calls *calls;
  tide__mpi_handle world, self, byte, errors_return;
  int tag_ub, any_source;
  void *status_ignore;
  bool (*yield_idle)(bool on); /* may be null; see let_mpi_yield */
} lib;

struct tide__mpi {
  atomic_int refs, dead, next_id, owed;
  bool late;                   /* of an attached one: a call of this process timed out */
  lib lib;
  tide__mpi_handle comm;       /* a copy of the world's */
  int rank, size, level, max_tag;
  bool serial;
  pthread_mutex_t lock;        /* around each call if serial */
};

/* ---- the two sets of calls ------------------------------------------------------------------- */

typedef struct calls {
  int (*abort)(const lib *l, tide__mpi_handle comm, int code);
  int (*dup)(const lib *l, tide__mpi_handle comm, tide__mpi_handle *copy);
  int (*free)(const lib *l, tide__mpi_handle *comm);
  int (*rank)(const lib *l, tide__mpi_handle comm, int *rank);
  int (*size)(const lib *l, tide__mpi_handle comm, int *size);
  int (*keep_errors)(const lib *l, tide__mpi_handle comm);
  int (*attr)(const lib *l, tide__mpi_handle comm, int key, void *value, int *found);
  int (*send)(const tide__mpi *m, const void *p, int n, int to, int tag, tide__mpi_handle *r);
  int (*recv)(const tide__mpi *m, void *p, int n, int from, int tag, tide__mpi_handle *r);
  int (*probe)(const tide__mpi *m, int from, int tag, int *found);
  int (*test)(const lib *l, tide__mpi_handle *r, int *done);
  int (*cancel)(const lib *l, tide__mpi_handle *r);
  int (*at_end)(tide__mpi *m); /* take_in(m) when MPI ends */
  int (*set_name)(const lib *l, tide__mpi_handle comm, const char *name);
  int (*name)(const lib *l, tide__mpi_handle comm, char *name, int *n);
} calls;

static void take_in(tide__mpi *m);

#define AS(type, l, name) ((type)(l)->sym[SYM_##name])

/* H: the type of a handle; f: its field of the union. */
#define CALLS(kind, H, f)                                                                         \
  static int abort_##kind(const lib *l, tide__mpi_handle c, int code)                             \
  { return AS(int (*)(H, int), l, Abort)(c.f, code); }                                            \
  static int dup_##kind(const lib *l, tide__mpi_handle c, tide__mpi_handle *copy)                 \
  { return AS(int (*)(H, H *), l, Comm_dup)(c.f, &copy->f); }                                     \
  static int free_##kind(const lib *l, tide__mpi_handle *c)                                       \
  { return AS(int (*)(H *), l, Comm_free)(&c->f); }                                               \
  static int rank_##kind(const lib *l, tide__mpi_handle c, int *rank)                             \
  { return AS(int (*)(H, int *), l, Comm_rank)(c.f, rank); }                                      \
  static int size_##kind(const lib *l, tide__mpi_handle c, int *size)                             \
  { return AS(int (*)(H, int *), l, Comm_size)(c.f, size); }                                      \
  static int keep_errors_##kind(const lib *l, tide__mpi_handle c)                                 \
  { return AS(int (*)(H, H), l, Comm_set_errhandler)(c.f, l->errors_return.f); }                  \
  static int attr_##kind(const lib *l, tide__mpi_handle c, int key, void *value, int *found)      \
  { return AS(int (*)(H, int, void *, int *), l, Comm_get_attr)(c.f, key, value, found); }        \
  static int send_##kind(const tide__mpi *m, const void *p, int n, int to, int tag,               \
                         tide__mpi_handle *r)                                                     \
  {                                                                                               \
    return AS(int (*)(const void *, int, H, int, int, H, H *), &m->lib, Isend)                    \
      (p, n, m->lib.byte.f, to, tag, m->comm.f, &r->f);                                           \
  }                                                                                               \
  static int recv_##kind(const tide__mpi *m, void *p, int n, int from, int tag,                   \
                         tide__mpi_handle *r)                                                     \
  {                                                                                               \
    return AS(int (*)(void *, int, H, int, int, H, H *), &m->lib, Irecv)                          \
      (p, n, m->lib.byte.f, from, tag, m->comm.f, &r->f);                                         \
  }                                                                                               \
  static int probe_##kind(const tide__mpi *m, int from, int tag, int *found)                       \
  {                                                                                               \
    return AS(int (*)(int, int, H, int *, void *), &m->lib, Iprobe)                               \
      (from, tag, m->comm.f, found, m->lib.status_ignore);                                        \
  }                                                                                               \
  static int test_##kind(const lib *l, tide__mpi_handle *r, int *done)                            \
  { return AS(int (*)(H *, int *, void *), l, Test)(&r->f, done, l->status_ignore); }             \
  static int cancel_##kind(const lib *l, tide__mpi_handle *r)                                     \
  { return AS(int (*)(H *), l, Cancel)(&r->f); }                                                  \
  static int copy_##kind(H c, int key, void *extra, void *in, void *out, int *flag)               \
  { (void)c, (void)key, (void)extra, (void)in, (void)out; return *flag = 0; }                     \
  static int end_##kind(H c, int key, void *value, void *extra)                                   \
  { (void)c, (void)key, (void)extra; take_in(value); return 0; }                                  \
  static int at_end_##kind(tide__mpi *m)                                                          \
  {                                                                                               \
    int key = 0;                                                                                  \
    int rc = AS(int (*)(int (*)(H, int, void *, void *, void *, int *),                           \
                        int (*)(H, int, void *, void *), int *, void *), &m->lib,                 \
                Comm_create_keyval)(copy_##kind, end_##kind, &key, NULL);                         \
    return rc ? rc : AS(int (*)(H, int, void *), &m->lib, Comm_set_attr)(m->lib.self.f, key, m);  \
  }                                                                                               \
  static int set_name_##kind(const lib *l, tide__mpi_handle c, const char *name)                  \
  { return AS(int (*)(H, const char *), l, Comm_set_name)(c.f, name); }                           \
  static int name_##kind(const lib *l, tide__mpi_handle c, char *name, int *n)                    \
  { return AS(int (*)(H, char *, int *), l, Comm_get_name)(c.f, name, n); }                       \
  static const calls calls_##kind = {                                                             \
    abort_##kind, dup_##kind, free_##kind, rank_##kind, size_##kind, keep_errors_##kind,          \
    attr_##kind, send_##kind, recv_##kind, probe_##kind, test_##kind, cancel_##kind,              \
    at_end_##kind, set_name_##kind, name_##kind,                                                  \
  };

CALLS(int, int, i)
CALLS(pointer, void *, p)

/* ---- finding the library --------------------------------------------------------------------- */

/* Libraries in the order in which they are tried: the launcher's own MPI first. */
static const char *const open_first[] = {"libmpi.so.40", "libmpi.so.80", "libmpich.so.12",
                                         "libmpi.so.12", "libmpi.so", NULL};
static const char *const mpich_first[] = {"libmpich.so.12", "libmpi.so.12", "libmpi.so.40",
                                          "libmpi.so", NULL};

static int api_refuse(int status, char *msg, size_t n, const char *fmt, const char *detail)
{
  snprintf(msg, n, fmt, detail);
  return status;
}

static const char *const *candidates(void)
{
  return getenv("PMI_RANK") && !getenv("OMPI_COMM_WORLD_RANK") ? mpich_first : open_first;
}

/* Returns the process itself if MPI is linked to it already. */
static void *own_mpi(void)
{
  void *object = dlopen(NULL, RTLD_NOW);
  return object && dlsym(object, "MPI_Init_thread") ? object : NULL;
}

static void *open_any(void)
{
  void *object = own_mpi();
  for (const char *const *name = candidates(); *name && !object; name++)
    object = dlopen(*name, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  for (const char *const *name = candidates(); *name && !object; name++)
    object = dlopen(*name, RTLD_NOW | RTLD_GLOBAL);
  return object;
}

static bool look_up(lib *l, const char **missing)
{
  for (int i = 0; i < NSYM; i++) {
    void *p = dlsym(l->object, names[i]);
    memcpy(&l->sym[i], &p, sizeof p);
    if (p) continue;
    *missing = names[i];
    return false;
  }
  return true;
}

/* Chooses the binary interface. The handles of MPICH and its relatives are part of a published
 * one. */
static bool choose_calls(lib *l)
{
  char version[8192 + 64] = "";
  int n = 0;
  l->world.p = dlsym(l->object, "ompi_mpi_comm_world");
  l->self.p = dlsym(l->object, "ompi_mpi_comm_self");
  l->byte.p = dlsym(l->object, "ompi_mpi_byte");
  l->errors_return.p = dlsym(l->object, "ompi_mpi_errors_return");
  if (l->world.p && l->self.p && l->byte.p && l->errors_return.p) {
    l->calls = &calls_pointer;
    l->tag_ub = 0;
    l->any_source = -1;
    l->status_ignore = NULL;
    void *p = dlsym(l->object, "opal_progress_set_yield_when_idle");
    memcpy(&l->yield_idle, &p, sizeof p);
    return true;
  }
  AS(int (*)(char *, int *), l, Get_library_version)(version, &n);
  if (!strstr(version, "MPICH") && !strstr(version, "Intel") && !strstr(version, "MVAPICH"))
    return false;
  l->calls = &calls_int;
  l->world.i = 0x44000000;
  l->self.i = 0x44000001;
  l->byte.i = 0x4c00010d;
  l->errors_return.i = 0x54000001;
  l->tag_ub = 0x64400001;
  l->any_source = -2;
  l->status_ignore = (void *)(intptr_t)1;
  return true;
}

static int api_load(lib *l, const char *library, char *msg, size_t n)
{
  const char *missing = NULL;
  l->object = library ? dlopen(library, RTLD_NOW | RTLD_GLOBAL) : open_any();
  if (!l->object)
    return library ? api_refuse(TIDE_E_UNSUPPORTED, msg, n, "cannot open MPI: %s", dlerror())
                   : api_refuse(TIDE_E_UNSUPPORTED, msg, n, "no MPI library found (%s); install "
                                "Open MPI or MPICH, or name the file in TIDE_MPI_LIBRARY",
                                "libmpi.so.40, libmpich.so.12, libmpi.so.12");
  if (!look_up(l, &missing))
    return api_refuse(TIDE_E_UNSUPPORTED, msg, n, "the MPI library has no %s; it must provide MPI "
                      "3", missing);
  if (!choose_calls(l))
    return api_refuse(TIDE_E_UNSUPPORTED, msg, n, "%s", "the MPI library is neither Open MPI nor "
                      "of MPICH's binary interface");
  return TIDE_OK;
}

/* ---- start and end --------------------------------------------------------------------------- */

/* Switches Open MPI's yield in idle polls; returns the old setting. It is on when there are more
 * ranks than slots. A poll then lasts the time slices of all other programs, and our waits poll
 * often: they yield and sleep by themselves. Open MPI's own waits (start, copy of the world, end)
 * keep the yield. */
static bool let_mpi_yield(const lib *l, bool on) { return l->yield_idle && l->yield_idle(on); }

static bool ask(const lib *l, int which)
{
  int flag = 0;
  ((int (*)(int *))l->sym[which])(&flag);
  return flag != 0;
}

static int start(tide__mpi *m, char *msg, size_t n)
{
  lib *l = &m->lib;
  if (ask(l, SYM_Finalized))
    return api_refuse(TIDE_E_STATE, msg, n, "%s", "MPI has been ended in this process; it starts "
                      "once a process");
  if (!ask(l, SYM_Initialized)) {
    int rc = AS(int (*)(int *, char ***, int, int *), l, Init_thread)
      (NULL, NULL, TIDE__MPI_MULTIPLE, &m->level);
    if (rc) return api_refuse(TIDE_E_COMM, msg, n, "%s did not start", "MPI");
  } else {
    AS(int (*)(int *), l, Query_thread)(&m->level);
  }
  m->serial = m->level < TIDE__MPI_MULTIPLE;
  if (!tide__mpi_my_thread(m))
    return api_refuse(TIDE_E_STATE, msg, n, "%s",
                      "this MPI allows calls from the main thread only");
  return TIDE_OK;
}

static int find_max_tag(const lib *l)
{
  int found = 0, *value = NULL;
  int rc = l->calls->attr(l, l->world, l->tag_ub, &value, &found);
  return !rc && found && value ? *value : 32767; /* what every MPI has */
}

static int make_world(tide__mpi *m, char *msg, size_t n)
{
  lib *l = &m->lib;
  let_mpi_yield(l, true);
  int rc = l->calls->dup(l, l->world, &m->comm);
  let_mpi_yield(l, false);
  if (!rc) rc = l->calls->keep_errors(l, m->comm);
  if (!rc) rc = l->calls->rank(l, m->comm, &m->rank);
  if (!rc) rc = l->calls->size(l, m->comm, &m->size);
  if (rc) {
    char text[600];
    return api_refuse(TIDE_E_COMM, msg, n, "MPI_Comm_dup: %s",
                      tide__mpi_error(m, rc, text, sizeof text));
  }
  m->max_tag = find_max_tag(l);
  return TIDE_OK;
}

static void api_destroy(tide__mpi *m)
{
  pthread_mutex_destroy(&m->lock);
  free(m);
}

int tide__mpi_open(tide__mpi **out, const char *library, char *msg, size_t n)
{
  *out = NULL;
  tide__mpi *m = calloc(1, sizeof *m);
  if (!m) return api_refuse(TIDE_E_NOMEM, msg, n, "no memory for %s", "MPI");
  atomic_init(&m->refs, 1);
  pthread_mutex_init(&m->lock, NULL);
  int rc = api_load(&m->lib, library, msg, n);
  if (rc == TIDE_OK) rc = start(m, msg, n);
  if (rc == TIDE_OK) rc = make_world(m, msg, n);
  if (rc == TIDE_OK) {
    *out = m;
    return rc;
  }
  api_destroy(m);
  return rc;
}

tide__mpi *tide__mpi_hold(tide__mpi *m)
{
  atomic_fetch_add(&m->refs, 1);
  return m;
}

/* Receives what is owed, in five seconds at most: its senders end MPI too. Other receives of this
 * world have been cancelled. */
static void take_in(tide__mpi *m)
{
  enum { ANY_TAG = -1, ROOM = 32768 };
  static const struct timespec nap = {0, 1000000};
  char *room = malloc(ROOM);
  int left = 5000;
  while (room && atomic_load(&m->owed) > 0 && left > 0) {
    tide__mpi_handle r;
    bool done = false;
    if (tide__mpi_recv(m, room, ROOM, m->lib.any_source, ANY_TAG, &r)) break;
    while (!done && left > 0) {
      tide__mpi_test(m, &r, &done);
      if (!done) left--, nanosleep(&nap, NULL);
    }
    if (!done) tide__mpi_cancel(m, &r), tide__mpi_test(m, &r, &done);
    if (!done) return; /* MPI keeps room */
    atomic_fetch_sub(&m->owed, 1);
  }
  free(room);
  m->lib.calls->free(&m->lib, &m->comm);
  api_destroy(m);
}

/* Frees the copy of the world. Each process does so when it is done with it; no implementation
 * waits for the others there. */
void tide__mpi_drop(tide__mpi *m)
{
  if (atomic_fetch_sub(&m->refs, 1) > 1) return;
  if (tide__mpi_dead(m) || !tide__mpi_my_thread(m) || ask(&m->lib, SYM_Finalized)) api_destroy(m);
  else if (atomic_load(&m->owed) == 0) take_in(m);
  else if (m->lib.calls->at_end(m)) api_destroy(m);
}

/* Finds the library if this process has loaded it and MPI runs. Opens nothing. */
static bool running(lib *l)
{
  const char *missing = NULL;
  l->object = own_mpi();
  return l->object && look_up(l, &missing) && ask(l, SYM_Initialized) &&
         !ask(l, SYM_Finalized) && choose_calls(l);
}

int tide__mpi_attach(tide__mpi **out)
{
  lib l = {0};
  *out = NULL;
  if (!running(&l)) return TIDE_E_STATE;
  tide__mpi *m = calloc(1, sizeof *m);
  if (!m) return TIDE_E_NOMEM;
  m->lib = l;
  m->comm = l.world;
  AS(int (*)(int *), &l, Query_thread)(&m->level);
  m->max_tag = find_max_tag(&l);
  l.calls->rank(&l, l.world, &m->rank);
  l.calls->size(&l, l.world, &m->size);
  pthread_mutex_init(&m->lock, NULL);
  char name[1024] = "";
  int n = 0;
  l.calls->name(&l, l.self, name, &n);
  atomic_init(&m->dead, strcmp(name, given_up) == 0);
  m->late = strcmp(name, timed_out) == 0;
  *out = m;
  return TIDE_OK;
}

void tide__mpi_detach(tide__mpi *m) { api_destroy(m); }

void tide__mpi_finalize(tide__mpi *m)
{
  let_mpi_yield(&m->lib, true);
  AS(int (*)(void), &m->lib, Finalize)();
}

int tide_mpi_abort(int code)
{
  lib l = {0};
  if (running(&l)) l.calls->abort(&l, l.world, code);
  return TIDE_MORE;
}

int tide_mpi_running(void)
{
  lib l = {0};
  return running(&l);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void api_enter(tide__mpi *m) { if (m->serial) pthread_mutex_lock(&m->lock); }

static void api_leave(tide__mpi *m) { if (m->serial) pthread_mutex_unlock(&m->lock); }

int tide__mpi_rank(const tide__mpi *m) { return m->rank; }
int tide__mpi_size(const tide__mpi *m) { return m->size; }
int tide__mpi_level(const tide__mpi *m) { return m->level; }
int tide__mpi_max_tag(const tide__mpi *m) { return m->max_tag; }
bool tide__mpi_dead(const tide__mpi *m) { return atomic_load(&m->dead) != 0; }
void tide__mpi_owe(tide__mpi *m) { atomic_fetch_add(&m->owed, 1); }

/* Leaves a note with MPI, for tide__mpi_attach. */
static void api_note(tide__mpi *m, const char *what)
{
  api_enter(m);
  m->lib.calls->set_name(&m->lib, m->lib.self, what);
  api_leave(m);
}

void tide__mpi_give_up(tide__mpi *m) { if (!atomic_exchange(&m->dead, 1)) api_note(m, given_up); }

void tide__mpi_note_late(tide__mpi *m) { if (!tide__mpi_dead(m)) api_note(m, timed_out); }

bool tide__mpi_was_late(const tide__mpi *m) { return m->late; }

int tide__mpi_next_id(const tide__mpi *m) { return atomic_load(&m->next_id); }

void tide__mpi_raise_id(tide__mpi *m, int next)
{
  int now = atomic_load(&m->next_id);
  while (now < next && !atomic_compare_exchange_weak(&m->next_id, &now, next)) {
  }
}

bool tide__mpi_my_thread(tide__mpi *m)
{
  return m->level >= TIDE__MPI_SERIALIZED || ask(&m->lib, SYM_Is_thread_main);
}

void tide__mpi_host(tide__mpi *m, char *buf, size_t n)
{
  char name[1024] = "";
  int length = 0;
  AS(int (*)(char *, int *), &m->lib, Get_processor_name)(name, &length);
  snprintf(buf, n, "%s", name);
}

int tide__mpi_send(tide__mpi *m, const void *p, size_t n, int to, int tag, tide__mpi_handle *r)
{
  api_enter(m);
  int rc = m->lib.calls->send(m, p, (int)n, to, tag, r);
  api_leave(m);
  return rc;
}

int tide__mpi_recv(tide__mpi *m, void *p, size_t n, int from, int tag, tide__mpi_handle *r)
{
  api_enter(m);
  int rc = m->lib.calls->recv(m, p, (int)n, from, tag, r);
  api_leave(m);
  return rc;
}

bool tide__mpi_sent_more(tide__mpi *m, int from, int tag)
{
  int found = 0;
  api_enter(m);
  int rc = m->lib.calls->probe(m, from, tag, &found);
  api_leave(m);
  return rc || found;
}

int tide__mpi_test(tide__mpi *m, tide__mpi_handle *r, bool *done)
{
  int flag = 0;
  api_enter(m);
  int rc = m->lib.calls->test(&m->lib, r, &flag);
  api_leave(m);
  *done = rc || flag;
  return rc;
}

void tide__mpi_cancel(tide__mpi *m, tide__mpi_handle *r)
{
  api_enter(m);
  m->lib.calls->cancel(&m->lib, r);
  api_leave(m);
}

const char *tide__mpi_error(tide__mpi *m, int code, char *buf, size_t n)
{
  char text[1024] = "";
  int length = 0;
  AS(int (*)(int, char *, int *), &m->lib, Error_string)(code, text, &length);
  snprintf(buf, n, "%s", text[0] ? text : "unknown error");
  return buf;
}
