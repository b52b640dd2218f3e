/* Device plugins: libraries that are opened at first use of their device. */
#ifndef TIDE_DEVICE_PLUGIN_H
#define TIDE_DEVICE_PLUGIN_H

#include "core/device/backend.h"

/* Returns the table of a device's plugin (TIDE_DEV_CUDA), opened beside libtide or where the loader
 * searches. NULL for a device without one; NULL and a sentence in why if the library is missing or
 * of another version. The library stays open until the process ends. */
const tide__plugin *tide__plugin_find(int device, char *why, size_t size);
/* tide__plugin_find for a context: records E_DEVICE under op. */
const tide__plugin *tide__plugin_open(tide_ctx *ctx, int device, const char *op);

#endif
