/* The link of a prompt whose ranks are processes: a TCP connection from each of them to the
 * prompt's process, rank 0. A thread reads the connections, also while the ranks are in
 * collectives.
 *
 * Rank 0 listens, on loopback if all processes are on its host, and names its addresses and a
 * secret, which the others send first. Frames have a head; all processes run the same program.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <lauxlib.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include "link.h"

/* INTERRUPT: of the line with this number. */
enum { HELLO = 1, TEXT, INTERRUPT, PROMPT_ENDS, RANK_ENDED };
enum { SECRET = 16, CONNECT_MS = 3000, ACCEPT_MS = 60000 };

typedef struct head {
  uint64_t n;
  int32_t kind, value;         /* value: a rank, or an exit code */
  int64_t line;
} head;

struct cli_link {
  cli_board *board;
  int rank, size, listener;
  int *fd;                     /* by rank; -1: none. Other ranks than 0 have fd[0] */
  int wake[2];                 /* line numbers that a signal handler writes; -1: end */
  unsigned char secret[SECRET];
  bool has_terminal;
  struct termios terminal;     /* as it was before the editor */
  pthread_mutex_t lock;        /* writes of frames */
  int64_t *sent;               /* texts, by rank; the main thread's */
  atomic_llong line;           /* number of the newest text that was sent, or received */
  atomic_bool over;            /* the connections may end */
  pthread_t thread;
  bool started;
};

cli_link *cli_link_new(cli_board *board, int rank, int size)
{
  cli_link *k = calloc(1, sizeof *k);
  if (!k) return NULL;
  *k = (cli_link){.board = board, .rank = rank, .size = size, .listener = -1, .wake = {-1, -1}};
  pthread_mutex_init(&k->lock, NULL);
  k->has_terminal = tcgetattr(STDIN_FILENO, &k->terminal) == 0;
  k->fd = malloc((size_t)size * sizeof *k->fd);
  k->sent = calloc((size_t)size, sizeof *k->sent);
  for (int q = 0; k->fd && q < size; q++) k->fd[q] = -1;
  bool ok = k->fd && k->sent && pipe(k->wake) == 0;
  if (ok && fcntl(k->wake[1], F_SETFL, O_NONBLOCK) == 0) return k;
  cli_link_free(k);
  return NULL;
}

static void link_wake(cli_link *k, int64_t line)
{
  ssize_t n = write(k->wake[1], &line, sizeof line);
  (void)n; /* full: the reader wakes anyway */
}

void cli_link_free(cli_link *k)
{
  if (!k) return;
  atomic_store(&k->over, true);
  if (k->started) {
    link_wake(k, -1);
    pthread_join(k->thread, NULL);
  }
  for (int q = 0; k->fd && q < k->size; q++)
    if (k->fd[q] >= 0) close(k->fd[q]);
  if (k->listener >= 0) close(k->listener);
  for (int i = 0; i < 2; i++)
    if (k->wake[i] >= 0) close(k->wake[i]);
  pthread_mutex_destroy(&k->lock);
  free(k->fd);
  free(k->sent);
  free(k);
}

/* ---- frames ---------------------------------------------------------------------------------- */

static bool link_write(int fd, const void *p, size_t n)
{
  for (const char *at = p; n > 0;) {
    ssize_t k = send(fd, at, n, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    at += k;
    n -= (size_t)k;
  }
  return true;
}

static bool link_read(int fd, void *p, size_t n)
{
  for (char *at = p; n > 0;) {
    ssize_t k = recv(fd, at, n, 0);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    at += k;
    n -= (size_t)k;
  }
  return true;
}

static bool send_frame(cli_link *k, int q, const head *h, const void *p)
{
  pthread_mutex_lock(&k->lock);
  bool done = k->fd[q] >= 0 && link_write(k->fd[q], h, sizeof *h) && link_write(k->fd[q], p, h->n);
  pthread_mutex_unlock(&k->lock);
  return done;
}

static void send_to_others(cli_link *k, const head *h)
{
  for (int q = 1; q < k->size; q++) send_frame(k, q, h, NULL);
}

bool cli_link_text(cli_link *k, int q, const char *text, size_t n)
{
  head h = {.n = n, .kind = TEXT, .value = k->rank};
  if (k->rank == 0) {
    h.line = ++k->sent[q];
    if (h.line > atomic_load(&k->line)) atomic_store(&k->line, h.line);
  }
  return send_frame(k, q, &h, text);
}

void cli_link_interrupt(cli_link *k)
{
  if (k->rank == 0 && k->started) link_wake(k, atomic_load(&k->line));
}

void cli_link_end_prompt(cli_link *k)
{
  const head h = {.kind = PROMPT_ENDS};
  atomic_store(&k->over, true);
  if (k->rank == 0) send_to_others(k, &h);
}

void cli_link_process_ended(cli_link *k, int code, const char *message)
{
  const head h = {.n = strlen(message) + 1, .kind = RANK_ENDED, .value = code};
  atomic_store(&k->over, true);
  send_frame(k, 0, &h, message);
}

/* ---- the reader ------------------------------------------------------------------------------ */

/* A connection has ended. The launcher ends the job too, without a reason. */
static void lost(cli_link *k, int q)
{
  close(k->fd[q]);
  k->fd[q] = -1;
  if (atomic_load(&k->over)) return;
  if (k->rank == 0) {
    if (k->has_terminal) tcsetattr(STDIN_FILENO, TCSANOW, &k->terminal);
    fflush(stdout);
    fprintf(stderr, "tide: rank %d has died; the prompt ends\n", q);
    fflush(stderr);
  }
  tide_mpi_abort(EXIT_RAISED);
  _exit(EXIT_RAISED);
}

static void link_handle(cli_link *k, int q, const head *h, const char *text)
{
  switch (h->kind) {
  case TEXT:
    if (k->rank != 0) atomic_store(&k->line, h->line);
    cli_board_receive(k->board, q, text, h->n);
    break;
  case INTERRUPT:
    if (h->line == atomic_load(&k->line)) cli_interrupt_line();
    break;
  case PROMPT_ENDS:
    atomic_store(&k->over, true);
    cli_board_end_prompt(k->board);
    cli_interrupt_line();
    break;
  case RANK_ENDED:
    atomic_store(&k->over, true); /* the others end too */
    cli_board_process_ended(k->board, q, h->value, text);
    break;
  default: break;
  }
}

static void read_frame(cli_link *k, int q)
{
  head h;
  bool whole = link_read(k->fd[q], &h, sizeof h);
  char *text = whole ? malloc(h.n + 1) : NULL;
  if (!text || !link_read(k->fd[q], text, h.n)) lost(k, q);
  else {
    text[h.n] = 0;
    link_handle(k, q, &h, text);
  }
  free(text);
}

/* Forwards an interrupt. Returns false at the end. */
static bool read_wake(cli_link *k)
{
  head h = {.kind = INTERRUPT};
  if (read(k->wake[0], &h.line, sizeof h.line) != sizeof h.line) return true;
  if (h.line < 0) return false;
  send_to_others(k, &h);
  return true;
}

static void *link_run(void *user)
{
  cli_link *k = user;
  struct pollfd *p = calloc((size_t)k->size + 1, sizeof *p);
  for (bool on = p != NULL; on;) {
    for (int q = 0; q < k->size; q++) p[q] = (struct pollfd){.fd = k->fd[q], .events = POLLIN};
    p[k->size] = (struct pollfd){.fd = k->wake[0], .events = POLLIN};
    if (poll(p, (nfds_t)k->size + 1, -1) < 0) continue;
    for (int q = 0; q < k->size; q++)
      if (p[q].fd >= 0 && p[q].revents) read_frame(k, q);
    if (p[k->size].revents) on = read_wake(k);
  }
  free(p);
  return NULL;
}

bool cli_link_start(cli_link *k)
{
  return k->started = pthread_create(&k->thread, NULL, link_run, k) == 0;
}

/* ---- meeting --------------------------------------------------------------------------------- */

static cli_link *link_of(lua_State *L) { return lua_touserdata(L, lua_upvalueindex(1)); }

static int link_fail(lua_State *L, const char *what)
{
  return luaL_error(L, "the prompt: %s: %s", what, strerror(errno));
}

/* Adds the addresses of this host's interfaces that are up, without loopback. */
static void add_addresses(luaL_Buffer *b)
{
  struct ifaddrs *list = NULL;
  char text[INET_ADDRSTRLEN];
  if (getifaddrs(&list) != 0) return;
  for (const struct ifaddrs *a = list; a; a = a->ifa_next) {
    struct sockaddr_in in;
    if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET) continue;
    if (!(a->ifa_flags & IFF_UP) || (a->ifa_flags & IFF_LOOPBACK)) continue;
    memcpy(&in, a->ifa_addr, sizeof in);
    if (!inet_ntop(AF_INET, &in.sin_addr, text, sizeof text)) continue;
    luaL_addchar(b, ' ');
    luaL_addstring(b, text);
  }
  freeifaddrs(list);
}

/* listen(here) returns "secret port address ..."; here: all processes are on this host. */
static int l_listen(lua_State *L)
{
  cli_link *k = link_of(L);
  bool here = lua_toboolean(L, 1);
  struct sockaddr_in in = {.sin_family = AF_INET};
  socklen_t n = sizeof in;
  char text[64];
  luaL_Buffer b;
  in.sin_addr.s_addr = htonl(here ? INADDR_LOOPBACK : INADDR_ANY);
  k->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (k->listener < 0 || bind(k->listener, (struct sockaddr *)&in, n) != 0 ||
      listen(k->listener, k->size) != 0 || getsockname(k->listener, (struct sockaddr *)&in, &n) ||
      getrandom(k->secret, SECRET, 0) != SECRET)
    return link_fail(L, "cannot listen for the other ranks");
  luaL_buffinit(L, &b);
  for (int i = 0; i < SECRET; i++) {
    snprintf(text, sizeof text, "%02x", k->secret[i]);
    luaL_addstring(&b, text);
  }
  snprintf(text, sizeof text, " %d", (int)ntohs(in.sin_port));
  luaL_addstring(&b, text);
  if (here) luaL_addstring(&b, " 127.0.0.1");
  else add_addresses(&b);
  luaL_pushresult(&b);
  return 1;
}

static void keep_connection(cli_link *k, int q, int fd)
{
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  k->fd[q] = fd;
}

/* Takes the connection of a rank that knows the secret; others are closed. */
static bool accept_one(cli_link *k)
{
  unsigned char secret[SECRET];
  const struct timeval limit = {CONNECT_MS / 1000, 0}, none = {0, 0};
  head h;
  int fd = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return false;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  bool good = link_read(fd, &h, sizeof h) && h.kind == HELLO && h.n == SECRET &&
              link_read(fd, secret, SECRET) && memcmp(secret, k->secret, SECRET) == 0 &&
              h.value > 0 && h.value < k->size && k->fd[h.value] < 0;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
  if (good) keep_connection(k, h.value, fd);
  else close(fd);
  return good;
}

/* accept() waits for the connections of all other ranks. */
static int l_accept(lua_State *L)
{
  cli_link *k = link_of(L);
  for (int n = 1; n < k->size;) {
    struct pollfd p = {.fd = k->listener, .events = POLLIN};
    int rc = poll(&p, 1, ACCEPT_MS);
    if (rc < 0 && errno == EINTR) continue;
    if (rc <= 0) return luaL_error(L, "the prompt: %d of %d ranks have not connected to rank 0",
                                   k->size - n, k->size - 1);
    n += accept_one(k);
  }
  close(k->listener);
  k->listener = -1;
  return 0;
}

/* Returns a connection, or -1 with errno. */
static int connect_to(const char *address, int port)
{
  struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  const struct timeval limit = {CONNECT_MS / 1000, 0}, none = {0, 0};
  if (inet_pton(AF_INET, address, &in.sin_addr) != 1) return -1;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  int rc = connect(fd, (struct sockaddr *)&in, sizeof in);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
  if (rc == 0) return fd;
  int why = errno;
  close(fd);
  errno = why;
  return -1;
}

/* connect(text) connects to rank 0, which has listened. */
static int l_connect(lua_State *L)
{
  cli_link *k = link_of(L);
  const head h = {.n = SECRET, .kind = HELLO, .value = k->rank};
  char hex[2 * SECRET + 1], address[INET_ADDRSTRLEN];
  int port, used, fd = -1;
  const char *at = luaL_checkstring(L, 1);
  if (sscanf(at, "%32s %d%n", hex, &port, &used) != 2) return luaL_error(L, "not an address");
  for (int i = 0; i < SECRET; i++) {
    unsigned byte = 0;
    sscanf(hex + 2 * i, "%2x", &byte);
    k->secret[i] = (unsigned char)byte;
  }
  errno = ENETUNREACH;
  for (at += used; fd < 0 && sscanf(at, " %15s%n", address, &used) == 1; at += used)
    fd = connect_to(address, port);
  if (fd < 0) return link_fail(L, "cannot connect to rank 0");
  keep_connection(k, 0, fd);
  return send_frame(k, 0, &h, k->secret) ? 0 : link_fail(L, "cannot write to rank 0");
}

void cli_link_show(cli_link *k, lua_State *L)
{
  static const luaL_Reg functions[] = {{"listen", l_listen}, {"accept", l_accept},
                                       {"connect", l_connect}};
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    lua_pushlightuserdata(L, k);
    lua_pushcclosure(L, functions[i].func, 1);
    lua_setfield(L, -2, functions[i].name);
  }
}
