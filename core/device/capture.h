/* A step that is captured once and replayed: see tide_graph_begin. Layer 1. */
#ifndef TIDE_DEVICE_CAPTURE_H
#define TIDE_DEVICE_CAPTURE_H

#include "core/device/device.h"

/* Whether what is enqueued on this device now is recorded. */
bool tide__captures(const tide_ctx *ctx, int device);
/* E_STATE under op if a step is being captured: op needs the host to wait for the device. */
int  tide__not_captured(tide_ctx *ctx, const char *op);

#endif
