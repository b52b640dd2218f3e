/* A stable sort of items by key, of a kernel's scratch. */
#pragma once

#include "kernels/cuda/cuda.cuh"

struct alignas(16) tide_keyed { uint64_t key; int64_t at; };

/* Bytes of scratch that tide_sort wants for n items, a multiple of 64. */
int64_t tide_sort_work(int64_t n);

/* Sorts n > 0 items, the first in work (tide_sort_work bytes), by keys of at most `limit`; returns
 * where in work they then lie. Equal keys keep their order. */
tide_keyed *tide_sort(const k_call *call, void *work, int64_t n, uint64_t limit);
