/* Asynchronous copies between host and device.
 *
 * Both storages point at the copy, and the next use of one of them waits as little as is correct:
 * the host blocks for its bytes, the device's compute stream (not the host) is ordered after the
 * copy for its own. So asynchronous copies give the results of blocking ones.
 */
#ifndef TIDE_DEVICE_ASYNC_COPY_H
#define TIDE_DEVICE_ASYNC_COPY_H

#include "core/device/storage.h"

/* Starts a copy of size bytes between pinned host memory and a device, at the given addresses.
 * Neither storage has a copy in progress. Returns a status; on failure nothing has started. */
int tide__async_copy_start(tide__storage *dst, void *to, tide__storage *src, const void *from,
                           size_t size, const char *op);
/* Waits until the storage may be read, written and dropped: blocks the host for its side, orders
 * compute for the device's. Returns a status. */
int  tide__async_copy_wait(tide__storage *s);
/* Lets a copy continue with the bytes of s, which is being dropped while the caller holds it.
 * Returns false if s is not the host's side; the caller then waits. */
bool tide__async_copy_detach(tide__storage *s);
/* Records the failure of tide__async_copy_wait and returns its status. */
int  tide__async_copy_failed(const tide__storage *s, const char *op);
/* reap removes completed copies; finish waits for all and removes them. */
void tide__async_copies_reap(tide__device *d);
void tide__async_copies_finish(tide__device *d);
/* Orders compute after all copies; the host does not wait. Returns a status. */
int  tide__async_copies_order(tide__device *d);

#endif
