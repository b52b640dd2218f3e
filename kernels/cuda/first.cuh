/* The first element of a row in an order, among those that the threads of a block have read. */
#pragma once

#include "kernels/cuda/block.cuh"

/* An element and its place in the row; -1: none. */
template <class T> struct tide_element { T value; int64_t at; };

/* Returns the first of the threads' elements to every thread. f.before(a, b): whether a
 * precedes b; an element at -1 follows all others. At most THREADS threads, which all call. */
template <int THREADS, class T, class F>
TIDE_DEVICE tide_element<T> tide_block_first(tide_element<T> mine, const F &f)
{
  __shared__ tide_element<T> all[THREADS];
  __syncthreads();
  all[threadIdx.x] = mine;
  for (int by = (int)blockDim.x / 2; by > 0; by /= 2) {
    __syncthreads();
    if ((int)threadIdx.x < by && f.before(all[threadIdx.x + by], all[threadIdx.x]))
      all[threadIdx.x] = all[threadIdx.x + by];
  }
  __syncthreads();
  return all[0];
}
