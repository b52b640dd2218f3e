/* Copies between host and device that are under way.
 *
 * Both storages know of the copy, and whoever uses one of them next makes the least
 * wait that is right: the host for its bytes, the device's compute stream (not the host) for its
 * own. So asynchronous copies give what blocking ones give.
 */
#ifndef TIDE_DEVICE_ASYNC_COPY_H
#define TIDE_DEVICE_ASYNC_COPY_H

#include "core/device/storage.h"

/* Starts a copy of size bytes between pinned host memory and the device that `device` names, at the
 * addresses given; neither storage is under way. A status; on failure nothing has begun. */
int tide__async_copy_start(tide__storage *dst, void *to, tide__storage *src, const void *from,
                           size_t size, const char *op);
/* The storage may be read, written and dropped afterwards. A status. */
int  tide__async_copy_wait(tide__storage *s);
/* s, which the caller holds, is dropped: where it is the host's side, the copy goes on with its
 * bytes and nobody waits. False: it must land first. */
bool tide__async_copy_detach(tide__storage *s);
/* Records the failure of tide__async_copy_wait and returns it. */
int  tide__async_copy_failed(const tide__storage *s, const char *op);
/* Forgets the copies that are done; waits for all of them. */
void tide__async_copies_reap(tide__device *d);
void tide__async_copies_finish(tide__device *d);
/* Compute waits for all of them, the host does not. A status. */
int  tide__async_copies_order(tide__device *d);

#endif
