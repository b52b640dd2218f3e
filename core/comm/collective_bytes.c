/* Byte strings over ranks; lengths differ from rank to rank. A first collective exchanges the
 * lengths, a second one moves the bytes into a blob of that size. A rank without memory for the
 * bytes ends the call for all ranks. The public functions are described in tide_abi.h. */
#include "core/comm/collective.h"
#include "core/io/io.h"

/* Returns the communicator for host memory, in which the bytes lie. */
static tide_comm *at_host(tide_comm *comm) { return comm->host ? comm->host : comm; }

/* Aborts the communicator: the other ranks wait to send data for which this rank has no memory. */
static int no_room(tide_comm *comm, int rc)
{
  char text[TIDE__MESSAGE];
  strcpy(text, comm->ctx->message);
  tide_comm_abort(comm, text);
  return rc;
}

static int broadcast_raw(tide_comm *comm, void *data, int64_t n, int dtype, int root)
{
  tide__seg seg = {data, data, n, n, dtype, dtype};
  tide__coll c = {.op = TIDE__BROADCAST, .reduce = -1, .dtype = dtype, .root = root, .nseg = 1,
                  .seg = &seg};
  return tide__comm_run(comm, &c, NULL, 0, NULL);
}

int tide__all_gather_number(tide_comm *comm, int64_t mine, int64_t *all)
{
  memset(all, 0, (size_t)comm->nrank * sizeof *all); /* imagined ranks bring nothing */
  all[comm->rank] = mine;
  tide__coll c = {.op = TIDE__ALL_GATHER, .reduce = -1, .dtype = TIDE_I64, .root = -1, .count = 1,
                  .size = sizeof mine, .in = (char *)&all[comm->rank], .out = (char *)all};
  return tide__comm_run(comm, &c, NULL, 0, NULL);
}

int tide_comm_broadcast_bytes(tide_blob **out, tide_comm *comm, const void *data, int64_t n,
                              int root)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(COMM, comm));
  comm = at_host(comm);
  bool mine = comm->rank == root;
  int64_t size = mine ? n : 0;
  TIDE_TRY(tide__comm_check(comm, "broadcast_bytes"));
  TIDE_TRY(tide__coll_check_root(comm, TIDE__BROADCAST, root));
  if (mine && (n < 0 || (n && !data)))
    return tide__fail(comm->ctx, TIDE_E_ARG, "broadcast_bytes", "argument 'n': expected 0 or more "
                      "bytes, got %lld", (long long)n);
  TIDE_TRY(broadcast_raw(comm, &size, 1, TIDE_I64, root));
  int rc = tide__blob_new(out, comm->ctx, size, "broadcast_bytes");
  if (rc < 0) return no_room(comm, rc);
  if (mine && n) memcpy((*out)->data, data, (size_t)n);
  rc = broadcast_raw(comm, (*out)->data, size, TIDE_U8, root);
  if (rc == TIDE_OK) return rc;
  tide_blob_release(*out);
  *out = NULL;
  return rc;
}

int tide_comm_all_gather_bytes(tide_blob **out, tide_comm *comm, const void *data, int64_t n,
                               int64_t *sizes)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(COMM, comm));
  int64_t total = 0;
  comm = at_host(comm);
  TIDE_TRY(tide__comm_check(comm, "all_gather_bytes"));
  if (n < 0 || (n && !data) || !sizes)
    return tide__fail(comm->ctx, TIDE_E_ARG, "all_gather_bytes", "expected n bytes of data (n >= "
                      "0) and room for %d sizes", comm->nrank);
  TIDE_TRY(tide__all_gather_number(comm, n, sizes));
  for (int i = 0; i < comm->nrank; i++) total += sizes[i];
  int rc = tide__blob_new(out, comm->ctx, total, "all_gather_bytes");
  if (rc < 0) return no_room(comm, rc);
  tide__coll c = {.op = TIDE__ALL_GATHER_V, .reduce = -1, .dtype = TIDE_U8, .root = -1,
                  .count = total, .size = 1, .in = data, .out = (*out)->data,
                  .out_counts = sizes};
  rc = tide__comm_run(comm, &c, NULL, 0, NULL);
  if (rc == TIDE_OK) return rc;
  tide_blob_release(*out);
  *out = NULL;
  return rc;
}
