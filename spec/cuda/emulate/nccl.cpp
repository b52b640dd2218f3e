/* A libnccl.so.2 whose ranks are threads of one process, so that core/comm/nccl/nccl.c is run.
 *
 * A call becomes a step of the stream it was given (stream.h). The step is not done
 * until all ranks' steps of that number have come; the last of them looks whether they agree, moves
 * the data of all and marks it done. Sends and receives wait in a mailbox a pair, in order.
 *
 * It is as unhelpful as NCCL may be: nothing blocks (config.blocking 0 is asked for), a group that
 * has ended is not on the stream before a caller has read the asynchronous error, init and
 * split are in progress until all ranks have come, sends to ranks that do not receive never end,
 * and calls are only compared where NCCL would corrupt memory or hang: then the communicator fails.
 * What is given to a stream that captures is a call of each launch of the graph, and of the same
 * communicator: that must not end before the graph has gone (NCCL waits for it for ever).
 * It refuses what NCCL refuses: two ranks on one device, a mean of integers, overlapping buffers
 * that are not the documented in-place form, roots and peers out of range. Environment:
 * TIDE_EMULATE_NCCL_FAULT=n: the n-th group of the process fails asynchronously;
 * TIDE_EMULATE_NCCL_SLOW=n: each n-th communicator of rank 1 takes 20 ms for a call, so that
 * threads of a rank overtake each other.
 *
 * A device has room for one kernel of NCCL at a time, the least that it may have (NCCL User Guide,
 * "Using multiple NCCL communicators concurrently": kernels may fit or not): the first that its
 * stream reaches, so ranks that begin with different ones wait for ever. With
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 they begin in the order of their launches ("Environment Variables").
 * Two ranks that launch the collectives of two communicators in different orders may wait for each
 * other: a communicator fails when that is seen. Spec only.
 */
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "stream.h"

extern "C" {
#include "core/base/dtype.h"
}
#include <cstring>

extern "C" int tide_emulate_device(); /* libtide_cuda: the thread's current device */

namespace {

enum result { OK, CUDA_ERROR, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS };
enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };
enum reduction { SUM, PROD, MAX, MIN, AVG };
enum type { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, NTYPE };
const size_t type_size[NTYPE] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

std::mutex lock;
int ngroup, nroom;
/* Collectives that each device was given, by communicator (room::id). */
typedef std::map<int, long> counts;
std::map<int, counts> launched;
std::set<int> ended; /* communicators that a rank has left */

struct op {
  kind what;
  const char *in;
  char *out;
  size_t n;
  int type, reduce, peer; /* peer: root, or the other of a pair */
};

/* One call of all ranks. */
struct meeting {
  std::map<int, op> came;
  std::map<int, int> device;
  std::map<int, counts> before; /* what the rank's device was given before */
  bool done = false;
};

struct room {
  int nrank, joined = 0, id = ++nroom;
  std::string error;
  std::set<int> devices; /* of those that joined */
  std::map<long, std::shared_ptr<meeting>> meetings;
  std::map<std::pair<int, int>, std::deque<op>> sent;
  std::map<int, std::map<int, std::shared_ptr<room>>> splits; /* by number, color */
  std::map<int, std::map<int, std::pair<int, int>>> asked;    /* by number: rank -> color, key */
  explicit room(int n) : nrank(n) {}
};

struct comm {
  std::shared_ptr<room> in;
  int rank, nsplit = 0, nkept = 0;
  long seq = 0;
  bool dead = false;          /* aborted */
  bool finalized = false;
  bool waiting_to_split = false;
  int color = 0;
  comm **split_out = nullptr; /* given when all have asked */
  std::vector<std::function<void()>> pending; /* groups that have ended, not on a stream yet */
  std::shared_ptr<int> graphs = std::make_shared<int>(0); /* one more holder each call of a graph */
  std::string last;
};

std::map<std::string, std::shared_ptr<room>> rooms;

/* ---- arithmetic ------------------------------------------------------------------------------ */

double get(const char *p, int type, size_t i)
{
  uint16_t half;
  switch (type) {
    case I8: return ((const int8_t *)p)[i];
    case U8: return ((const uint8_t *)p)[i];
    case I32: return ((const int32_t *)p)[i];
    case U32: return ((const uint32_t *)p)[i];
    case I64: return (double)((const int64_t *)p)[i];
    case U64: return (double)((const uint64_t *)p)[i];
    case F32: return ((const float *)p)[i];
    case F64: return ((const double *)p)[i];
    default:
      memcpy(&half, p + 2 * i, 2);
      return type == F16 ? tide__f16_to_f32(half) : tide__bf16_to_f32(half);
  }
}

void put(char *p, int type, size_t i, double v)
{
  uint16_t half;
  switch (type) {
    case I8: ((int8_t *)p)[i] = (int8_t)(int64_t)v; break;
    case U8: ((uint8_t *)p)[i] = (uint8_t)(int64_t)v; break;
    case I32: ((int32_t *)p)[i] = (int32_t)(int64_t)v; break;
    case U32: ((uint32_t *)p)[i] = (uint32_t)(int64_t)v; break;
    case I64: ((int64_t *)p)[i] = (int64_t)v; break;
    case U64: ((uint64_t *)p)[i] = (uint64_t)(int64_t)v; break;
    case F32: ((float *)p)[i] = (float)v; break;
    case F64: ((double *)p)[i] = v; break;
    default:
      half = type == F16 ? tide__f32_to_f16((float)v) : tide__f32_to_bf16((float)v);
      memcpy(p + 2 * i, &half, 2);
  }
}

double fold(int reduce, double a, double b)
{
  switch (reduce) {
    case PROD: return a * b;
    case MAX: return a > b ? a : b;
    case MIN: return a < b ? a : b;
    default: return a + b;
  }
}

/* Elements at.. of all inputs, folded, as bytes. */
std::vector<char> reduced(const meeting &m, const op &o, size_t at, size_t n)
{
  std::vector<char> out(n * type_size[o.type]);
  for (size_t i = 0; i < n; i++) {
    double v = get(m.came.at(0).in, o.type, at + i);
    for (size_t q = 1; q < m.came.size(); q++)
      v = fold(o.reduce, v, get(m.came.at((int)q).in, o.type, at + i));
    put(out.data(), o.type, i, o.reduce == AVG ? v / (double)m.came.size() : v);
  }
  return out;
}

/* ---- a meeting ------------------------------------------------------------------------------- */

bool same_call(const op &a, const op &b)
{
  return a.what == b.what && a.n == b.n && a.type == b.type && a.reduce == b.reduce
    && a.peer == b.peer;
}

/* Whether two ranks were given other communicators' collectives before this one equally often; of
 * those that both devices belong to. */
bool same_order(const meeting &m, int id)
{
  for (auto &a : m.before)
    for (auto &b : m.before)
      for (auto &row : launched[m.device.at(a.first)]) {
        int other = row.first;
        bool shared = launched[m.device.at(b.first)].count(other);
        if (other == id || ended.count(other) || !shared) continue;
        auto x = a.second.find(other), y = b.second.find(other);
        if ((x == a.second.end() ? 0 : x->second) != (y == b.second.end() ? 0 : y->second))
          return false;
      }
  return true;
}

/* All have come. */
std::string move_data(meeting &m)
{
  const op &first = m.came.at(0);
  size_t size = type_size[first.type], nrank = m.came.size();
  for (auto &row : m.came)
    if (!same_call(row.second, first)) return "calls differ";
  std::vector<std::vector<char>> result(nrank);
  for (size_t q = 0; q < nrank; q++) {
    const op &o = m.came.at((int)q);
    bool root = (int)q == o.peer;
    if (o.what == ALL_REDUCE || (o.what == REDUCE && root)) result[q] = reduced(m, o, 0, o.n);
    if (o.what == BROADCAST) {
      const char *from = m.came.at(o.peer).in;
      result[q].assign(from, from + o.n * size);
    }
    if (o.what == REDUCE_SCATTER) result[q] = reduced(m, o, q * o.n, o.n);
    if (o.what == ALL_GATHER)
      for (size_t k = 0; k < nrank; k++) {
        const char *from = m.came.at((int)k).in;
        result[q].insert(result[q].end(), from, from + o.n * size);
      }
  }
  for (size_t q = 0; q < nrank; q++)
    if (!result[q].empty()) memcpy(m.came.at((int)q).out, result[q].data(), result[q].size());
  return "";
}

/* ---- a device's turn ------------------------------------------------------------------------- */

struct kernel { int device; };
std::map<int, std::weak_ptr<kernel>> on_device;
std::map<int, std::deque<std::weak_ptr<kernel>>> in_order; /* as launched */

bool ordered()
{
  const char *said = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return said && *said == '1';
}

std::shared_ptr<kernel> launch_on(int device)
{
  std::shared_ptr<kernel> k(new kernel{device});
  in_order[device].push_back(k);
  return k;
}

/* Whether k may run, or goes on. */
bool begins(const std::shared_ptr<kernel> &k)
{
  std::deque<std::weak_ptr<kernel>> &list = in_order[k->device];
  while (!list.empty() && list.front().expired()) list.pop_front();
  if (ordered()) return list.empty() || list.front().lock() == k;
  std::weak_ptr<kernel> &now = on_device[k->device];
  if (now.expired()) now = k;
  return now.lock() == k;
}

/* One collective of one rank, as a step. */
struct collective {
  comm *c;
  std::shared_ptr<room> in;
  op o;
  long seq;
  int device;
  counts before;
  std::shared_ptr<kernel> runs;
  bool operator()()
  {
    std::lock_guard<std::mutex> g(lock);
    if (c->dead || !in->error.empty()) return true; /* an aborted kernel ends */
    if (!begins(runs)) return false;
    std::shared_ptr<meeting> &m = in->meetings[seq];
    if (!m) m = std::make_shared<meeting>();
    m->came[c->rank] = o;
    m->device[c->rank] = device;
    m->before[c->rank] = before;
    if (!m->done && (int)m->came.size() == in->nrank) {
      in->error = move_data(*m);
      if (in->error.empty() && !same_order(*m, in->id))
        in->error = "ranks launch the calls of two communicators in different orders";
      m->done = true;
    }
    return m->done;
  }
};

/* Sends and receives of one group. */
struct exchange {
  comm *c;
  std::shared_ptr<room> in;
  std::shared_ptr<std::vector<op>> ops;
  std::shared_ptr<bool> posted;
  std::shared_ptr<kernel> runs;
  bool operator()()
  {
    std::lock_guard<std::mutex> g(lock);
    if (c->dead || !in->error.empty()) return true;
    if (!begins(runs)) return false;
    if (!*posted)
      for (op &o : *ops)
        if (o.what == SEND) in->sent[{c->rank, o.peer}].push_back(o);
    *posted = true;
    bool left = false;
    for (op &o : *ops)
      if (o.what == RECV && o.n != SIZE_MAX) take(o), left = left || o.n != SIZE_MAX;
    return !left && taken();
  }
  /* Received parts are marked by n of SIZE_MAX. The first receive that waits holds up those after
   * it from the same rank. */
  void take(op &o)
  {
    for (op &before : *ops) {
      if (&before == &o) break;
      if (before.what == RECV && before.peer == o.peer && before.n != SIZE_MAX) return;
    }
    std::deque<op> &box = in->sent[{o.peer, c->rank}];
    if (box.empty()) return;
    if (box.front().n * type_size[box.front().type] != o.n * type_size[o.type]) {
      in->error = "a send and its receive differ in size";
      return;
    }
    memmove(o.out, box.front().in, o.n * type_size[o.type]);
    box.pop_front();
    o.n = SIZE_MAX;
  }
  bool taken()
  {
    for (op &o : *ops)
      if (o.what == SEND)
        for (op &s : in->sent[{c->rank, o.peer}])
          if (s.in == o.in && s.n == o.n) return false;
    return true;
  }
};

/* ---- groups ---------------------------------------------------------------------------------- */

struct queued { comm *c; op o; tide_emulate_stream *stream; };
thread_local int depth;
thread_local std::vector<queued> group;
thread_local int group_error;

int check(comm *c, const op &o)
{
  int n = c->in->nrank;
  if (c->dead || c->finalized) return USAGE;
  if (o.type < 0 || o.type >= NTYPE || o.peer < -1 || o.peer >= n) return ARGUMENT;
  if (o.reduce == AVG && o.type < F16) return ARGUMENT;
  size_t size = o.n * type_size[o.type];
  if (o.n && o.what != SEND && !o.out && !(o.what == REDUCE && o.peer != c->rank)) return ARGUMENT;
  if (o.n && o.what != RECV && !o.in && !(o.what == BROADCAST && o.peer != c->rank))
    return ARGUMENT;
  if (o.what == ALL_GATHER && o.n) {
    const char *mine = o.out + (size_t)c->rank * size;
    bool apart = o.in + size <= o.out || o.out + size * (size_t)n <= o.in;
    if (!apart && o.in != mine) return ARGUMENT;
  }
  if (o.what == REDUCE_SCATTER && o.n) {
    const char *mine = o.in + (size_t)c->rank * size;
    bool apart = o.out + size <= o.in || o.in + size * (size_t)n <= o.out;
    if (!apart && o.out != mine) return ARGUMENT;
  }
  return OK;
}

/* Ends the program where a kernel of NCCL would touch memory that its device does not reach: NCCL
 * User Guide, "Collective Communication Functions" (buffers are device pointers); it looks at them
 * itself only with NCCL_CHECK_POINTERS=1 ("Environment Variables"). Not under the lock. */
void check_reach(const comm *c, const op &o, const tide_emulate_stream *stream)
{
  size_t size = o.n * type_size[o.type], whole = size * (size_t)c->in->nrank;
  bool root = o.peer == c->rank;
  struct { const void *p; bool used; size_t n; } buffers[] = {
    {o.in, o.what != RECV && (o.what != BROADCAST || root),
     o.what == REDUCE_SCATTER ? whole : size},
    {o.out, o.what != SEND && (o.what != REDUCE || root), o.what == ALL_GATHER ? whole : size}};
  for (const auto &b : buffers) {
    if (!b.used || !b.n || stream->reaches(b.p, b.n)) continue;
    fprintf(stderr, "emulated NCCL: rank %d is given %zu bytes at %p, which device %d does not "
            "reach: memory of the host or of another device, freed, or beyond an allocation\n",
            c->rank, b.n, b.p, stream->device);
    abort();
  }
}

/* A call, made now or at each launch of the graph, which holds the communicator. */
void give(comm *c, tide_emulate_stream *stream, std::function<std::function<bool()>()> make)
{
  std::shared_ptr<int> holder = stream->capturing() ? c->graphs : nullptr;
  stream->record([holder, make] { return make(); });
}

void check_no_graph(const comm *c)
{
  if (c->graphs.use_count() == 1) return;
  fprintf(stderr, "emulated NCCL: a communicator ends before a graph with calls of it\n");
  abort();
}

/* What a group has for one communicator goes to the streams when the asynchronous error is asked
 * for: until then it is in progress. */
void launch(comm *c, const std::vector<queued> &list)
{
  std::vector<op> ops;
  tide_emulate_stream *stream = nullptr;
  for (const queued &q : list) {
    stream = q.stream;
    if (q.o.what == SEND || q.o.what == RECV) {
      ops.push_back(q.o);
      continue;
    }
    give(c, stream, [c, q]() -> std::function<bool()> {
      std::lock_guard<std::mutex> g(lock);
      counts before = launched[q.stream->device];
      launched[q.stream->device][c->in->id]++;
      return collective{c, c->in, q.o, ++c->seq, q.stream->device, before,
                        launch_on(q.stream->device)};
    });
  }
  if (ops.empty()) return;
  give(c, stream, [c, ops, stream]() -> std::function<bool()> {
    std::lock_guard<std::mutex> g(lock);
    return exchange{c, c->in, std::make_shared<std::vector<op>>(ops),
                    std::make_shared<bool>(false), launch_on(stream->device)};
  });
}

int end_group()
{
  int rc = group_error;
  std::vector<queued> list;
  list.swap(group);
  group_error = OK;
  if (rc != OK) return rc;
  std::map<comm *, std::vector<queued>> by_comm;
  for (const queued &q : list) by_comm[q.c].push_back(q);
  std::lock_guard<std::mutex> g(lock);
  const char *said = getenv("TIDE_EMULATE_NCCL_FAULT");
  if (said && !by_comm.empty() && ++ngroup == atoi(said))
    by_comm.begin()->first->in->error = "an emulated fault of the network";
  for (auto &row : by_comm) {
    comm *c = row.first;
    std::vector<queued> ops = row.second;
    c->pending.push_back([c, ops] { launch(c, ops); });
  }
  return by_comm.empty() ? OK : IN_PROGRESS;
}

int add(comm *c, const op &o, tide_emulate_stream *stream)
{
  std::unique_lock<std::mutex> g(lock);
  int rc = check(c, o);
  if (rc != OK) c->last = "an argument is wrong";
  const char *slow = getenv("TIDE_EMULATE_NCCL_SLOW");
  bool late = slow && c->rank == 1 && c->in->id % atoi(slow) == 0;
  g.unlock();
  if (late) usleep(20000);
  if (rc != OK) {
    if (depth) group_error = rc;
    return rc;
  }
  check_reach(c, o, stream);
  if (o.n) group.push_back({c, o, stream});
  return depth ? OK : end_group();
}

/* Under the lock: gives the communicators of a split that all ranks have asked for. */
void try_split(comm *c)
{
  auto &asked = c->in->asked[c->nsplit];
  if (!c->waiting_to_split || (int)asked.size() < c->in->nrank) return;
  c->waiting_to_split = false;
  if (c->color < 0) return;
  int mine = 0, n = 0;
  std::pair<int, int> me = {asked[c->rank].second, c->rank};
  for (auto &row : asked)
    if (row.second.first == c->color) {
      n++;
      if (std::make_pair(row.second.second, row.first) < me) mine++;
    }
  std::shared_ptr<room> &made = c->in->splits[c->nsplit][c->color];
  if (!made) made = std::make_shared<room>(n);
  made->joined++;
  comm *sub = new comm;
  sub->in = made;
  sub->rank = mine;
  *c->split_out = sub;
}

}  // namespace

/* ---- the interface --------------------------------------------------------------------------- */

struct unique_id { char bytes[128]; };
struct config_t {
  size_t size;
  unsigned magic, version;
  int blocking, cga, least, most;
  const char *net;
  int share;
};

#define API extern "C" __attribute__((visibility("default")))

API int ncclGetVersion(int *v)
{
  *v = 22809;
  return OK;
}

API int ncclGetUniqueId(unique_id *id)
{
  static int n;
  std::lock_guard<std::mutex> g(lock);
  memset(id, 0, sizeof *id);
  snprintf(id->bytes, sizeof id->bytes, "emulated %d", ++n);
  return OK;
}

API int ncclCommInitRankConfig(comm **out, int nrank, unique_id id, int rank, config_t *config)
{
  std::lock_guard<std::mutex> g(lock);
  if (!config || config->magic != 0xcafebeef || config->version < 21400 || config->blocking != 0
      || config->size < sizeof *config || config->cga != INT_MIN || config->net)
    return ARGUMENT;
  if (rank < 0 || rank >= nrank) return ARGUMENT;
  std::shared_ptr<room> &r = rooms[id.bytes];
  if (!r) r = std::make_shared<room>(nrank);
  r->joined++;
  if (!r->devices.insert(tide_emulate_device()).second) r->error = "duplicate device";
  *out = new comm;
  (*out)->in = r;
  (*out)->rank = rank;
  return IN_PROGRESS;
}

API int ncclCommSplit(comm *c, int color, int key, comm **out, config_t *config)
{
  std::lock_guard<std::mutex> g(lock);
  if (c->dead || config) return ARGUMENT;
  c->nsplit++;
  c->in->asked[c->nsplit][c->rank] = {color, key};
  c->waiting_to_split = true;
  c->color = color;
  c->split_out = out;
  *out = nullptr;
  return IN_PROGRESS;
}

API int ncclCommGetAsyncError(comm *c, int *error)
{
  std::vector<std::function<void()>> ready;
  *error = OK;
  {
    std::lock_guard<std::mutex> g(lock);
    try_split(c);
    if (!c->in->error.empty()) {
      c->last = c->in->error;
      *error = REMOTE;
      return OK;
    }
    if (c->in->joined < c->in->nrank || c->waiting_to_split) {
      *error = IN_PROGRESS;
      return OK;
    }
    if (c->pending.empty()) return OK;
    *error = IN_PROGRESS;
    ready.swap(c->pending);
  }
  for (auto &f : ready) f();
  return OK;
}

static bool ready(const comm *c) { return !c->dead && c->in->joined == c->in->nrank; }

API int ncclCommUserRank(const comm *c, int *rank)
{
  *rank = c->rank;
  return ready(c) ? OK : ARGUMENT;
}
API int ncclCommCount(const comm *c, int *n)
{
  *n = c->in->nrank;
  return ready(c) ? OK : ARGUMENT;
}
API int ncclCommFinalize(comm *c)
{
  std::lock_guard<std::mutex> g(lock);
  ended.insert(c->in->id);
  c->finalized = true;
  return IN_PROGRESS;
}
/* Steps that name the communicator may still be queued: it stays. */
API int ncclCommDestroy(comm *c)
{
  if (c->nkept) {
    fprintf(stderr, "emulated NCCL: %d buffers are still registered\n", c->nkept);
    abort();
  }
  check_no_graph(c);
  return c->finalized ? OK : USAGE;
}
API int ncclCommAbort(comm *c)
{
  std::lock_guard<std::mutex> g(lock);
  check_no_graph(c);
  ended.insert(c->in->id);
  c->dead = true;
  return OK;
}
API const char *ncclGetErrorString(int error)
{
  return error == REMOTE ? "remote process exited or there was a network error"
    : error == ARGUMENT ? "invalid argument" : error == OK ? "no error" : "emulated error";
}
API const char *ncclGetLastError(const comm *c) { return c ? c->last.c_str() : ""; }

/* Every buffer that was registered goes before its communicator. */
API int ncclCommRegister(const comm *c, void *, size_t size, void **handle)
{
  std::lock_guard<std::mutex> g(lock);
  if (!ready(c) || size == 0) return ARGUMENT;
  comm *own = const_cast<comm *>(c);
  *handle = new int(++own->nkept);
  return OK;
}
API int ncclCommDeregister(const comm *c, void *handle)
{
  std::lock_guard<std::mutex> g(lock);
  const_cast<comm *>(c)->nkept--;
  delete static_cast<int *>(handle);
  return OK;
}

API int ncclGroupStart()
{
  depth++;
  return OK;
}
API int ncclGroupEnd()
{
  if (depth == 0) return USAGE;
  return --depth ? OK : end_group();
}

API int ncclAllReduce(const void *in, void *out, size_t n, int type, int reduce, comm *c,
                      tide_emulate_stream *s)
{
  return add(c, {ALL_REDUCE, (const char *)in, (char *)out, n, type, reduce, -1}, s);
}
API int ncclReduce(const void *in, void *out, size_t n, int type, int reduce, int root, comm *c,
                   tide_emulate_stream *s)
{
  return add(c, {REDUCE, (const char *)in, (char *)out, n, type, reduce, root}, s);
}
API int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, comm *c,
                      tide_emulate_stream *s)
{
  return add(c, {BROADCAST, (const char *)in, (char *)out, n, type, -1, root}, s);
}
API int ncclAllGather(const void *in, void *out, size_t n, int type, comm *c,
                      tide_emulate_stream *s)
{
  return add(c, {ALL_GATHER, (const char *)in, (char *)out, n, type, -1, -1}, s);
}
API int ncclReduceScatter(const void *in, void *out, size_t n, int type, int reduce, comm *c,
                          tide_emulate_stream *s)
{
  return add(c, {REDUCE_SCATTER, (const char *)in, (char *)out, n, type, reduce, -1}, s);
}
API int ncclSend(const void *in, size_t n, int type, int to, comm *c, tide_emulate_stream *s)
{
  return add(c, {SEND, (const char *)in, nullptr, n, type, -1, to}, s);
}
API int ncclRecv(void *out, size_t n, int type, int from, comm *c, tide_emulate_stream *s)
{
  return add(c, {RECV, nullptr, (char *)out, n, type, -1, from}, s);
}
