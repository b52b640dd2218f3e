/* What the public collectives share: the checks that a rank can make alone, by collective_check.c.
 *
 * Each returns a status. Its message names the collective `coll` and the argument `arg`.
 */
#pragma once

#include "core/comm/comm.h"
#include "core/tensor/tensor.h"

/* Records a failure of one argument and returns status. */
int tide__coll_bad(tide_comm *comm, int coll, int status, const char *arg, const char *what);
/* Fails with E_ARG unless root is one of the ranks. */
int tide__coll_check_root(tide_comm *comm, int coll, int root);
/* Fails with E_ARG unless op is a reduction, with E_DTYPE unless it has results of the dtype. */
int tide__coll_check_reduce(tide_comm *comm, int coll, int op, int dtype);
/* Fails with E_GONE or E_DEVICE unless the tensor has bytes that the transport reaches. */
int tide__coll_check_reach(tide_comm *comm, int coll, const tide_tensor *t, const char *arg);
/* Checks a tensor to write as check_reach does; also fails with E_SHAPE unless it is contiguous,
 * with E_STATE if it is the result of a recorded op. */
int tide__coll_check_written(tide_comm *comm, int coll, const tide_tensor *t, const char *arg);
/* Returns whether the bytes of two contiguous tensors overlap. */
bool tide__coll_overlap(const tide_tensor *a, const tide_tensor *b);
