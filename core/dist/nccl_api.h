/* NCCL as this library uses it: opened at run time, its C interface declared by hand.
 *
 * Types and numbers are those of nccl.h since 2.18 (the first with ncclCommSplit); they have not
 * changed since. A handle is a pointer, a stream is a pointer, a unique id is 128 bytes by value.
 * Layer 4.
 */
#ifndef TIDE_DIST_NCCL_API_H
#define TIDE_DIST_NCCL_API_H

#include <stddef.h>

enum { TIDE__NCCL_OK = 0, TIDE__NCCL_IN_PROGRESS = 7, TIDE__NCCL_OLDEST = 21800 };

typedef struct tide__nccl_id { char bytes[128]; } tide__nccl_id;

typedef struct tide__nccl {
  void *object;
  int version;                 /* 22703: 2.27.3 */
  int (*get_version)(int *version);
  int (*get_unique_id)(tide__nccl_id *id);
  int (*comm_init_rank)(void **comm, int nrank, tide__nccl_id id, int rank);
  int (*comm_split)(void *comm, int color, int key, void **out, void *config);
  int (*comm_user_rank)(const void *comm, int *rank);
  int (*comm_count)(const void *comm, int *count);
  int (*comm_destroy)(void *comm);
  int (*comm_abort)(void *comm);
  int (*comm_async_error)(void *comm, int *error);
  const char *(*error_string)(int error);
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
} tide__nccl;

/* library: a file name, or null for the usual one. TIDE_E_UNSUPPORTED with one sentence in msg. */
int  tide__nccl_open(tide__nccl *l, const char *library, char *msg, size_t n);
void tide__nccl_close(tide__nccl *l);

#endif
