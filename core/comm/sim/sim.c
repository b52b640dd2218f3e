/* The transport of one rank of an imagined N: collectives are counted (move.c) and move nothing. */
#include "core/comm/comm.h"

static int sim_run(void *state, int rank, tide__coll *c)
{
  (void)state, (void)rank;
  if (c->op != TIDE__SPLIT || c->color < 0) return TIDE_OK;
  snprintf(c->message, sizeof c->message, "a simulated communicator does not know the other ranks' "
           "colors; make one of the part's size with comm_simulate");
  return TIDE_E_UNSUPPORTED;
}

const tide__transport tide__transport_sim = {.name = "sim", .instant = true, .run = sim_run};

int tide_comm_simulate(tide_comm **out, tide_ctx *ctx, int nrank, int rank, int host_size)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  if (nrank < 1 || rank < 0 || rank >= nrank || host_size < 1)
    return tide__fail(ctx, TIDE_E_ARG, "comm_simulate", "expected nrank >= 1, rank in [0, nrank) "
                      "and host_size >= 1, got %d, %d and %d", nrank, rank, host_size);
  TIDE_TRY(tide__comm_new(out, ctx, &tide__transport_sim, NULL, NULL, rank, nrank, "world"));
  (*out)->host_size = host_size;
  return TIDE_OK;
}
