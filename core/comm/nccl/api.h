/* NCCL as this library uses it: opened at run time, its C interface declared by hand.
 *
 * Types and numbers are those of nccl.h since 2.18 (the first with ncclCommSplit); they have not
 * changed since, and a config carries the version it was written for. A handle is a pointer, a
 * stream is a pointer, a unique id is 128 bytes by value.
 */
#ifndef TIDE_COMM_NCCL_API_H
#define TIDE_COMM_NCCL_API_H

#include <stddef.h>

enum { TIDE__NCCL_OK = 0, TIDE__NCCL_IN_PROGRESS = 7, TIDE__NCCL_OLDEST = 21800 };

typedef struct tide__nccl_id { char bytes[128]; } tide__nccl_id;

/* ncclConfig_t of 2.18. What is not chosen is INT_MIN or null. */
typedef struct tide__nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share;
} tide__nccl_config;
enum { TIDE__NCCL_MAGIC = (int)0xcafebeef };

typedef struct tide__nccl {
  void *object;
  int version;                 /* 22703: 2.27.3 */
  int (*get_version)(int *version);
  int (*get_unique_id)(tide__nccl_id *id);
  int (*comm_init)(void **comm, int nrank, tide__nccl_id id, int rank, tide__nccl_config *config);
  int (*comm_split)(void *comm, int color, int key, void **out, tide__nccl_config *config);
  int (*comm_user_rank)(const void *comm, int *rank);
  int (*comm_count)(const void *comm, int *count);
  int (*comm_finalize)(void *comm);
  int (*comm_destroy)(void *comm);
  int (*comm_abort)(void *comm);
  int (*comm_async_error)(void *comm, int *error);
  const char *(*error_string)(int error);
  const char *(*last_error)(const void *comm);
  int (*group_start)(void), (*group_end)(void);
  int (*all_reduce)(const void *in, void *out, size_t n, int type, int op, void *comm, void *st);
  int (*reduce)(const void *in, void *out, size_t n, int type, int op, int root, void *comm,
                void *st);
  int (*broadcast)(const void *in, void *out, size_t n, int type, int root, void *comm, void *st);
  int (*all_gather)(const void *in, void *out, size_t n, int type, void *comm, void *st);
  int (*reduce_scatter)(const void *in, void *out, size_t n, int type, int op, void *comm,
                        void *st);
  int (*send)(const void *in, size_t n, int type, int to, void *comm, void *st);
  int (*recv)(void *out, size_t n, int type, int from, void *comm, void *st);
  /* Since 2.19; null in 2.18. */
  int (*comm_register)(const void *comm, void *buffer, size_t size, void **handle);
  int (*comm_deregister)(const void *comm, void *handle);
} tide__nccl;

/* library: a file name, or null for the usual one. TIDE_E_UNSUPPORTED with one sentence in msg. The
 * library stays in the process: it has threads of its own. */
int  tide__nccl_open(tide__nccl *l, const char *library, char *msg, size_t n);
void tide__nccl_close(tide__nccl *l);

#endif
