/* Devices that live in a library of their own, opened at first use.
 */
#ifndef TIDE_DEVICE_PLUGIN_H
#define TIDE_DEVICE_PLUGIN_H

#include "core/base/ctx.h"
#include "core/device/backend.h"

/* The table of the library of a device (TIDE_DEV_CUDA), opened beside libtide or where the loader
 * looks. Null for a device without one; null and why, a sentence, if the library is not there or of
 * another version. The library stays open as long as the process. */
const tide__plugin *tide__plugin_find(int device, char *why, size_t size);
/* The same, for a context: E_DEVICE recorded under op. */
const tide__plugin *tide__plugin_open(tide_ctx *ctx, int device, const char *op);

#endif
