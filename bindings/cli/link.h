/* The link between the processes of a prompt (link.c). One reads lines: rank 0. */
#pragma once

#include "cli.h"

typedef struct cli_link cli_link;

cli_link *cli_link_new(cli_board *board, int rank, int size); /* NULL: no memory */
void cli_link_free(cli_link *k);
/* Adds listen, accept and connect to the table on top of the stack. */
void cli_link_show(cli_link *k, lua_State *L);
/* Starts to read what the others send, for the board. Returns false if there is no thread. */
bool cli_link_start(cli_link *k);
/* Sends a text: rank 0 to rank q, the others to rank 0. Returns false if the connection is lost. */
bool cli_link_text(cli_link *k, int q, const char *text, size_t n);
void cli_link_interrupt(cli_link *k);  /* on rank 0: stops the others' line; in a signal handler */
void cli_link_end_prompt(cli_link *k); /* on rank 0: ends the prompt of the others */
/* Sends rank 0 the end of this rank: its exit code, and a message unless it called os.exit. */
void cli_link_process_ended(cli_link *k, int code, const char *message);
