/* The board between a prompt and its ranks.
 *
 * The prompt's Lua state, in the main thread, posts texts to ranks and reads what they give; each
 * rank, a thread with a state of its own, takes its texts in order and blocks in take between two
 * lines. What the texts mean is decided in lua/tide/repl.
 *
 * With a link the ranks are processes, which have a board each: texts of other processes arrive
 * there from the link's thread.
 */
#include <errno.h>
#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "link.h"

/* A text on its way. */
typedef struct note {
  struct note *next;
  int rank;
  size_t n;
  char text[];
} note;

typedef struct queue { note *first, *last; } queue;

struct cli_board {
  pthread_mutex_t lock;
  pthread_cond_t posted, given;
  int nrank;
  bool prompt_over; /* the prompt ends, or a thread of a rank has: take returns nil */
  bool ranks_ended; /* all ranks have, or one of another process: next waits no longer */
  queue *to;       /* by rank */
  queue from;
  cli_busy *busy;  /* by rank */
  cli_link *link;  /* null: the ranks are threads */
  int rank;        /* with a link: of this process */
  bool has_first;
  cli_rank_end first; /* of the ranks that ended by themselves */
};

/* ---- notes ----------------------------------------------------------------------------------- */

static bool board_put(queue *q, int rank, const char *text, size_t n)
{
  note *made = malloc(sizeof *made + n);
  if (!made) return false;
  *made = (note){.rank = rank, .n = n};
  memcpy(made->text, text, n);
  if (q->last) q->last->next = made;
  else q->first = made;
  q->last = made;
  return true;
}

static note *board_pop(queue *q)
{
  note *n = q->first;
  if (n) q->first = n->next;
  if (!q->first) q->last = NULL;
  return n;
}

static void board_empty(queue *q)
{
  for (note *n; (n = board_pop(q));) free(n);
}

cli_board *cli_board_new(int nrank)
{
  cli_board *b = calloc(1, sizeof *b);
  pthread_condattr_t attr;
  if (!b) return NULL;
  b->nrank = nrank;
  b->to = calloc((size_t)nrank, sizeof *b->to);
  b->busy = calloc((size_t)nrank, sizeof *b->busy);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->posted, NULL);
  pthread_cond_init(&b->given, &attr);
  pthread_condattr_destroy(&attr);
  if (b->to && b->busy) return b;
  cli_board_free(b);
  return NULL;
}

void cli_board_free(cli_board *b)
{
  if (!b) return;
  for (int i = 0; b->to && i < b->nrank; i++) board_empty(&b->to[i]);
  board_empty(&b->from);
  pthread_cond_destroy(&b->posted);
  pthread_cond_destroy(&b->given);
  pthread_mutex_destroy(&b->lock);
  free(b->to);
  free(b->busy);
  free(b);
}

static void set_flag(cli_board *b, bool *flag)
{
  pthread_mutex_lock(&b->lock);
  *flag = true;
  pthread_cond_broadcast(&b->posted);
  pthread_cond_signal(&b->given);
  pthread_mutex_unlock(&b->lock);
}

static void stop_lines(cli_board *b)
{
  for (int i = 0; i < b->nrank; i++) cli_busy_last(&b->busy[i]);
}

void cli_board_end_prompt(cli_board *b)
{
  set_flag(b, &b->prompt_over);
  stop_lines(b);
}

void cli_board_ranks_ended(cli_board *b) { set_flag(b, &b->ranks_ended); }

void cli_board_rank_ended(cli_board *b, int rank)
{
  pthread_mutex_lock(&b->lock);
  bool early = !b->prompt_over;
  if (early) b->first.rank = rank;
  b->has_first = b->has_first || early;
  b->prompt_over = b->ranks_ended = true;
  pthread_cond_broadcast(&b->posted);
  pthread_cond_signal(&b->given);
  pthread_mutex_unlock(&b->lock);
  if (early) stop_lines(b);
}

void cli_board_end_watch(cli_board *b, int rank) { cli_busy_end(&b->busy[rank]); }

void cli_board_interrupt(cli_board *b)
{
  for (int i = 0; i < b->nrank; i++) cli_busy_interrupt(&b->busy[i]);
  if (b->link) cli_link_interrupt(b->link);
}

/* ---- with a link ----------------------------------------------------------------------------- */

void cli_board_receive(cli_board *b, int rank, const char *text, size_t n)
{
  pthread_mutex_lock(&b->lock);
  queue *q = b->rank == 0 ? &b->from : &b->to[b->rank];
  if (!board_put(q, rank, text, n)) b->ranks_ended = true;
  pthread_cond_broadcast(&b->posted);
  pthread_cond_signal(&b->given);
  pthread_mutex_unlock(&b->lock);
}

void cli_board_process_ended(cli_board *b, int rank, int code, const char *message)
{
  if (b->rank > 0) {
    cli_link_process_ended(b->link, code, message);
    return;
  }
  pthread_mutex_lock(&b->lock);
  if (!b->has_first) {
    b->first.rank = rank;
    b->first.code = code;
    snprintf(b->first.message, sizeof b->first.message, "%s", message);
  }
  b->has_first = b->ranks_ended = true;
  pthread_cond_signal(&b->given);
  pthread_mutex_unlock(&b->lock);
}

const cli_rank_end *cli_board_first_end(const cli_board *b)
{
  return b->has_first ? &b->first : NULL;
}

void cli_board_end_everywhere(cli_board *b)
{
  cli_link_end_prompt(b->link);
  cli_board_end_prompt(b);
  if (b->ranks_ended) cli_interrupt_line();
}

/* ---- the prompt's side ----------------------------------------------------------------------- */

static cli_board *board_of(lua_State *L) { return lua_touserdata(L, lua_upvalueindex(1)); }

static int board_rank(lua_State *L) { return (int)lua_tointeger(L, lua_upvalueindex(2)); }

/* post(rank, text) */
static int l_post(lua_State *L)
{
  cli_board *b = board_of(L);
  int rank = luaL_checkint(L, 1);
  size_t n;
  const char *text = luaL_checklstring(L, 2, &n);
  luaL_argcheck(L, rank >= 0 && rank < b->nrank, 1, "not a rank");
  if (b->link && rank != b->rank)
    return cli_link_text(b->link, rank, text, n)
             ? 0 : luaL_error(L, "the connection to rank %d is lost", rank);
  pthread_mutex_lock(&b->lock);
  bool done = board_put(&b->to[rank], rank, text, n);
  pthread_cond_broadcast(&b->posted);
  pthread_mutex_unlock(&b->lock);
  return done ? 0 : luaL_error(L, "out of memory");
}

static double board_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct timespec board_after(double seconds)
{
  double at = board_now() + seconds;
  struct timespec t = {.tv_sec = (time_t)at};
  t.tv_nsec = (long)((at - (double)t.tv_sec) * 1e9);
  return t;
}

/* next(seconds) returns rank and text of the next note; nil if no note arrives in time; nil,
 * "ended" if the ranks have ended. */
static int l_next(lua_State *L)
{
  cli_board *b = board_of(L);
  struct timespec until = board_after(luaL_checknumber(L, 1));
  int rc = 0;
  pthread_mutex_lock(&b->lock);
  while (!b->from.first && !b->ranks_ended && rc != ETIMEDOUT)
    rc = pthread_cond_timedwait(&b->given, &b->lock, &until);
  note *got = board_pop(&b->from);
  bool ended = b->ranks_ended;
  pthread_mutex_unlock(&b->lock);
  if (!got) {
    lua_pushnil(L);
    if (ended) lua_pushliteral(L, "ended");
    return ended ? 2 : 1;
  }
  lua_pushinteger(L, got->rank);
  lua_pushlstring(L, got->text, got->n);
  free(got);
  return 2;
}

static int l_now(lua_State *L)
{
  lua_pushnumber(L, board_now());
  return 1;
}

/* ---- a rank's side --------------------------------------------------------------------------- */

/* give(text) */
static int l_give(lua_State *L)
{
  cli_board *b = board_of(L);
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  if (b->link && b->rank > 0)
    return cli_link_text(b->link, 0, text, n) ? 0 : luaL_error(L, "the prompt is lost");
  pthread_mutex_lock(&b->lock);
  bool done = board_put(&b->from, board_rank(L), text, n);
  pthread_cond_signal(&b->given);
  pthread_mutex_unlock(&b->lock);
  return done ? 0 : luaL_error(L, "out of memory");
}

/* take() returns the next text for this rank; nil when the prompt ends. */
static int l_take(lua_State *L)
{
  cli_board *b = board_of(L);
  queue *q = &b->to[board_rank(L)];
  pthread_mutex_lock(&b->lock);
  while (!q->first && !b->prompt_over) pthread_cond_wait(&b->posted, &b->lock);
  note *got = b->prompt_over ? NULL : board_pop(q);
  pthread_mutex_unlock(&b->lock);
  if (got) lua_pushlstring(L, got->text, got->n);
  else lua_pushnil(L);
  free(got);
  return 1;
}

/* ---- in package.loaded['tide.host'] ---------------------------------------------------------- */

static void set_function(lua_State *L, const char *name, lua_CFunction fn, cli_board *b, int rank)
{
  lua_pushlightuserdata(L, b);
  lua_pushinteger(L, rank);
  lua_pushcclosure(L, fn, 2);
  lua_setfield(L, -2, name);
}

typedef struct side { cli_board *board; int rank; } side; /* rank -1: the prompt's */

static void describe_board(lua_State *L, const void *user)
{
  const side *to = user;
  cli_board *b = to->board;
  int rank = to->rank;
  lua_newtable(L);
  lua_pushinteger(L, b->nrank);
  lua_setfield(L, -2, "size");
  lua_pushinteger(L, rank < 0 && b->link ? b->rank : rank);
  lua_setfield(L, -2, "rank");
  lua_pushboolean(L, b->link != NULL);
  lua_setfield(L, -2, "processes");
  if (rank < 0) {
    if (b->link) cli_link_show(b->link, L);
    set_function(L, "post", l_post, b, rank);
    set_function(L, "next", l_next, b, rank);
    set_function(L, "now", l_now, b, rank);
  } else {
    set_function(L, "give", l_give, b, rank);
    set_function(L, "take", l_take, b, rank);
  }
  lua_setfield(L, -2, "board");
}

int cli_board_show(cli_board *b, lua_State *L, int rank)
{
  const side to = {b, rank};
  int rc = tide_host_describe(L, describe_board, &to);
  return rc ? rc : cli_busy_watch(L, rank < 0 ? NULL : &b->busy[rank]);
}

int cli_board_join(cli_board *b, lua_State *L, cli_link *link, int rank)
{
  b->link = link;
  b->rank = rank;
  return cli_board_show(b, L, -1);
}
