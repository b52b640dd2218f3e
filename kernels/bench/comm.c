/* Collectives between threads against Open MPI between processes, on equal buffers, alternated.
 *
 * Usage: comm [ranks] [rounds] [part of an operation's name]
 *
 * This program starts itself twice under mpirun (default and with huge pages), as
 * children that sleep until told through a shared page what to run, so that they never share the
 * processors with what is being measured. Each round runs ours, the children, and a copy of large
 * blocks on all ranks, which gives the memory bandwidth of that moment. Time is that of the slowest
 * rank. MPI is opened at run time in the children; without it ours are printed alone.
 *
 * share: bytes that must be read and written / bandwidth / our time. moved: those bytes.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/bench/bench.h"
#include "kernels/reduce_ranks.h"
#include "tide/tide.h"

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SHIFT, BARRIER, COPY, STOP };
static const char *const op_name[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                      "shift", "barrier"};

/* What a round asks for. bytes: of the larger buffer of a rank. */
typedef struct job { int op, repeat; int64_t bytes; } job;

typedef struct row { int op; int64_t bytes; int repeat; } row;
static const row rows[] = {
  {BARRIER, 0, 4000},
  {ALL_REDUCE, 1 << 10, 4000}, {ALL_REDUCE, 64 << 10, 1000}, {ALL_REDUCE, 4 << 20, 20},
  {ALL_REDUCE, 64 << 20, 2},
  {ALL_GATHER, 64 << 20, 2}, {REDUCE_SCATTER, 64 << 20, 2}, {ALL_TO_ALL, 64 << 20, 2},
  {SHIFT, 64 << 20, 2}, {SHIFT, 256 << 10, 400},
};
enum { BIG = 64 << 20, MAX_ROUND = 101 };

/* ---- ours: threads --------------------------------------------------------------------------- */

typedef struct crew {
  int nrank;
  job now;
  pthread_barrier_t start, end;
  tide_group *group;
  double seconds[64];
} crew;

typedef struct seat { crew *crew; int rank; pthread_t thread; } seat;

static void die(const char *what)
{
  fprintf(stderr, "comm: %s\n", what);
  exit(1);
}

static tide_tensor *part(tide_ctx *ctx, tide_tensor *whole, int64_t bytes)
{
  tide_tensor *t;
  if (tide_slice(&t, whole, 0, 0, bytes / 4, 1) < 0) die(tide_error(ctx)->message);
  return t;
}

static int comm_run_ours(tide_comm *comm, const job *j, tide_tensor *x, tide_tensor *y)
{
  int rank = tide_comm_rank(comm), n = tide_comm_size(comm), rc = 0;
  for (int i = 0; i < j->repeat && rc == 0; i++) {
    if (j->op == ALL_REDUCE) rc = tide_comm_all_reduce(NULL, comm, 1, &x, TIDE_SUM);
    if (j->op == ALL_GATHER) rc = tide_comm_all_gather(NULL, comm, x, y);
    if (j->op == REDUCE_SCATTER) rc = tide_comm_reduce_scatter(NULL, comm, y, x, TIDE_SUM);
    if (j->op == ALL_TO_ALL) rc = tide_comm_all_to_all(NULL, comm, y, x);
    if (j->op == SHIFT)
      rc = tide_comm_send_recv(NULL, comm, 1, &y, (rank + n - 1) % n, &x, (rank + 1) % n);
    if (j->op == BARRIER) rc = tide_comm_barrier(NULL, comm);
    if (j->op == COPY) k_cpu_copy_bytes(tide_tensor_data(y), tide_tensor_data(x), BIG);
  }
  return rc;
}

static int64_t small_bytes(const job *j, int nrank)
{
  return j->op == ALL_GATHER || j->op == REDUCE_SCATTER ? j->bytes / nrank / 4 * 4 : j->bytes;
}

/* As mpirun does when there are enough processors. */
static void bind_rank(int rank, int nrank)
{
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < nrank) return;
  CPU_ZERO(&one);
  for (int cpu = 0, k = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &all) && k++ == rank) CPU_SET(cpu, &one);
  pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

static void *comm_rank_main(void *arg)
{
  seat *s = arg;
  crew *c = s->crew;
  tide_ctx *ctx = NULL;
  tide_comm *comm = NULL;
  tide_tensor *big[2];
  tide_opts opts;
  int64_t n = BIG / 4;
  tide_opts_init(&opts);
  opts.nthread = 1;
  bind_rank(s->rank, c->nrank);
  if (tide_ctx_new(&ctx, &opts, NULL, 0) < 0) die("no context");
  if (tide_comm_join(&comm, ctx, c->group, s->rank) < 0) die(tide_error(ctx)->message);
  for (int i = 0; i < 2; i++)
    if (tide_full(&big[i], ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n, 0) < 0) die("no memory");
  for (;;) {
    pthread_barrier_wait(&c->start);
    job j = c->now;
    if (j.op == STOP) break;
    int64_t bytes = j.op == ALL_GATHER || j.op == REDUCE_SCATTER || j.op == ALL_TO_ALL
                        ? j.bytes / c->nrank / 64 * 64 * c->nrank : j.bytes;
    j.bytes = bytes;
    tide_tensor *x = part(ctx, big[0], bytes), *y = part(ctx, big[1], small_bytes(&j, c->nrank));
    tide_comm_barrier(NULL, comm);
    double begin = bench_now();
    if (comm_run_ours(comm, &j, x, y) < 0) die(tide_error(ctx)->message);
    c->seconds[s->rank] = (bench_now() - begin) / j.repeat;
    tide_tensor_release(x);
    tide_tensor_release(y);
    pthread_barrier_wait(&c->end);
  }
  tide_tensor_release(big[0]);
  tide_tensor_release(big[1]);
  tide_comm_release(comm);
  tide_ctx_release(ctx);
  return NULL;
}

static double ours(crew *c, job j)
{
  double worst = 0;
  c->now = j;
  pthread_barrier_wait(&c->start);
  pthread_barrier_wait(&c->end);
  for (int i = 0; i < c->nrank; i++) worst = fmax(worst, c->seconds[i]);
  return worst;
}

/* ---- the peer: a child under mpirun ---------------------------------------------------------- */

typedef struct page {
  atomic_int seq, done, ready; /* ready: ranks that have started */
  pid_t parent;
  job now;
  double seconds;
} page;

typedef struct peer { page *page; pid_t pid; char path[64]; } peer;

typedef struct mpi {
  int (*init)(int *, char ***);
  int (*rank)(void *, int *), (*size)(void *, int *), (*finalize)(void), (*barrier)(void *);
  int (*allreduce)(const void *, void *, int, void *, void *, void *);
  int (*allgather)(const void *, int, void *, void *, int, void *, void *);
  int (*reduce_scatter)(const void *, void *, int, void *, void *, void *);
  int (*alltoall)(const void *, int, void *, void *, int, void *, void *);
  int (*sendrecv)(const void *, int, void *, int, int, void *, int, void *, int, int, void *,
                  void *);
  void *world, *f32, *f64, *sum, *max;
} mpi;

static void *symbol(void *lib, const char *name)
{
  void *p = dlsym(lib, name);
  if (!p) die(name);
  return p;
}

static void open_mpi(mpi *m)
{
  void *lib = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
  if (!lib) die("Open MPI (libmpi.so.40) is not installed");
  *(void **)&m->init = symbol(lib, "MPI_Init");
  *(void **)&m->rank = symbol(lib, "MPI_Comm_rank");
  *(void **)&m->size = symbol(lib, "MPI_Comm_size");
  *(void **)&m->finalize = symbol(lib, "MPI_Finalize");
  *(void **)&m->barrier = symbol(lib, "MPI_Barrier");
  *(void **)&m->allreduce = symbol(lib, "MPI_Allreduce");
  *(void **)&m->allgather = symbol(lib, "MPI_Allgather");
  *(void **)&m->reduce_scatter = symbol(lib, "MPI_Reduce_scatter_block");
  *(void **)&m->alltoall = symbol(lib, "MPI_Alltoall");
  *(void **)&m->sendrecv = symbol(lib, "MPI_Sendrecv");
  m->world = symbol(lib, "ompi_mpi_comm_world");
  m->f32 = symbol(lib, "ompi_mpi_float");
  m->f64 = symbol(lib, "ompi_mpi_double");
  m->sum = symbol(lib, "ompi_mpi_op_sum");
  m->max = symbol(lib, "ompi_mpi_op_max");
}

static void run_mpi(const mpi *m, const job *j, int rank, int n, float *x, float *y)
{
  int count = (int)(j->bytes / 4), piece = (int)(j->bytes / n / 64 * 64 / 4);
  for (int i = 0; i < j->repeat; i++) {
    if (j->op == ALL_REDUCE) m->allreduce((void *)1, x, count, m->f32, m->sum, m->world);
    if (j->op == ALL_GATHER) m->allgather(y, piece, m->f32, x, piece, m->f32, m->world);
    if (j->op == REDUCE_SCATTER) m->reduce_scatter(x, y, piece, m->f32, m->sum, m->world);
    if (j->op == ALL_TO_ALL) m->alltoall(x, piece, m->f32, y, piece, m->f32, m->world);
    if (j->op == SHIFT)
      m->sendrecv(x, count, m->f32, (rank + 1) % n, 0, y, count, m->f32, (rank + n - 1) % n, 0,
                  m->world, NULL);
    if (j->op == BARRIER) m->barrier(m->world);
  }
}

static page *map_page(const char *path)
{
  int fd = open(path, O_RDWR);
  page *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) die("the shared page cannot be mapped");
  close(fd);
  return p;
}

static int child(const char *path)
{
  mpi m;
  int rank, n, seen = 0;
  page *p = map_page(path);
  float *x = malloc(BIG), *y = malloc(BIG);
  open_mpi(&m);
  m.init(NULL, NULL);
  m.rank(m.world, &rank);
  m.size(m.world, &n);
  memset(x, 0, BIG);
  memset(y, 0, BIG);
  atomic_fetch_add(&p->ready, 1);
  for (;;) {
    while (atomic_load(&p->seq) == seen) {
      if (kill(p->parent, 0) < 0) _exit(1); /* it was killed, and mpirun with it or not */
      usleep(200);
    }
    seen++;
    job j = p->now;
    if (j.op == STOP) break;
    double worst = 0;
    m.barrier(m.world);
    double begin = bench_now();
    run_mpi(&m, &j, rank, n, x, y);
    double mine = (bench_now() - begin) / j.repeat;
    m.allreduce(&mine, &worst, 1, m.f64, m.max, m.world);
    if (rank == 0) p->seconds = worst;
    m.barrier(m.world);
    if (rank == 0) atomic_store(&p->done, seen);
  }
  m.finalize();
  return 0;
}

static bool start_peer(peer *p, const char *self, int nrank, bool huge)
{
  char ranks[16];
  snprintf(p->path, sizeof p->path, "/tmp/tide-bench-comm-XXXXXX");
  int fd = mkstemp(p->path);
  if (fd < 0 || ftruncate(fd, sizeof(page)) < 0) die("no temporary file");
  close(fd);
  p->page = map_page(p->path);
  p->page->parent = getpid();
  snprintf(ranks, sizeof ranks, "%d", nrank);
  p->pid = fork();
  if (p->pid == 0) {
    if (huge) setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    execlp("mpirun", "mpirun", "--oversubscribe", "-np", ranks, self, "--child", p->path,
           (char *)NULL);
    _exit(127);
  }
  for (int i = 0; i < 30000 && atomic_load(&p->page->ready) < nrank; i++) {
    if (waitpid(p->pid, NULL, WNOHANG) != 0) return false;
    usleep(1000);
  }
  return atomic_load(&p->page->ready) == nrank;
}

static double theirs(peer *p, job j)
{
  int seq = atomic_load(&p->page->seq) + 1;
  p->page->now = j;
  atomic_store(&p->page->seq, seq);
  if (j.op == STOP) return 0;
  while (atomic_load(&p->page->done) != seq) {
    if (waitpid(p->pid, NULL, WNOHANG) != 0) die("the MPI child ended");
    usleep(100);
  }
  return p->page->seconds;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Returns the bytes that all ranks together must read and write. */
static double must_move(const row *r, int n)
{
  double s = (double)r->bytes;
  if (r->op == REDUCE_SCATTER) return n * s + s;
  return 2 * n * s;
}

static double bus_factor(int op, int n)
{
  if (op == ALL_REDUCE) return 2.0 * (n - 1) / n;
  return op == SHIFT ? 1 : (n - 1.0) / n;
}

static void bench_row(crew *c, peer *peers, int npeer, const row *r, int round)
{
  double us[MAX_ROUND], them[MAX_ROUND], ratio[MAX_ROUND], share[MAX_ROUND];
  int n = c->nrank;
  job j = {r->op, r->repeat, r->bytes};
  ours(c, j);
  for (int k = 0; k < npeer; k++) theirs(&peers[k], j);
  for (int i = 0; i < round; i++) {
    us[i] = ours(c, j);
    them[i] = INFINITY;
    for (int k = 0; k < npeer; k++) them[i] = fmin(them[i], theirs(&peers[k], j));
    double copy = ours(c, (job){COPY, 1, BIG});
    ratio[i] = them[i] / us[i];
    share[i] = must_move(r, n) / (2.0 * n * BIG / copy) / us[i];
  }
  double mid = bench_quantile(us, round, 0.5), peer_mid = bench_quantile(them, round, 0.5);
  printf("%-15s %8lld B  N%d  ours %10.2f us  %6.2f GB/s", op_name[r->op], (long long)r->bytes, n,
         mid * 1e6, bus_factor(r->op, n) * (double)r->bytes / mid * 1e-9);
  if (npeer)
    printf("  peer %10.2f us  ratio %6.2f [%.2f %.2f]", peer_mid * 1e6,
           bench_quantile(ratio, round, 0.5), bench_quantile(ratio, round, 0.25),
           bench_quantile(ratio, round, 0.75));
  if (r->bytes >= 1 << 20)
    printf("  moved %4.0f MiB  share %3.0f%%", must_move(r, n) / (1 << 20),
           100 * bench_quantile(share, round, 0.5));
  printf("\n");
  fflush(stdout);
}

int main(int argc, char **argv)
{
  if (argc == 3 && !strcmp(argv[1], "--child")) return child(argv[2]);
  crew c = {.nrank = argc > 1 ? atoi(argv[1]) : 2};
  int round = argc > 2 ? atoi(argv[2]) : 11, npeer = 0;
  const char *only = argc > 3 ? argv[3] : "";
  char self[512], msg[256];
  seat seats[64];
  peer peers[2];
  if (c.nrank < 2 || c.nrank > 64 || round < 1 || round > MAX_ROUND) die("2 to 64 ranks, 1 to 101");
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  for (int k = 0; k < 2; k++) {
    if (start_peer(&peers[npeer], self, c.nrank, k == 1)) npeer++;
    else unlink(peers[npeer].path);
  }
  if (!npeer) printf("no Open MPI here: ours alone\n");
  if (tide_group_new(&c.group, c.nrank, NULL, msg, sizeof msg) < 0) die(msg);
  pthread_barrier_init(&c.start, NULL, (unsigned)c.nrank + 1);
  pthread_barrier_init(&c.end, NULL, (unsigned)c.nrank + 1);
  for (int i = 0; i < c.nrank; i++) {
    seats[i] = (seat){.crew = &c, .rank = i};
    if (pthread_create(&seats[i].thread, NULL, comm_rank_main, &seats[i])) die("no thread");
  }
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (strstr(op_name[rows[i].op], only)) bench_row(&c, peers, npeer, &rows[i], round);
  c.now.op = STOP;
  pthread_barrier_wait(&c.start);
  for (int i = 0; i < c.nrank; i++) pthread_join(seats[i].thread, NULL);
  for (int k = 0; k < npeer; k++) {
    theirs(&peers[k], (job){.op = STOP});
    waitpid(peers[k].pid, NULL, 0);
    unlink(peers[k].path);
  }
  tide_group_release(c.group);
  return 0;
}
