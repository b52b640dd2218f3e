/* What the ops of attention share (attention.c). */
#pragma once

#include "core/op/op.h"

/* Checks operands and attributes of an attention call, without its bias. */
int tide__check_attention(const tide_tensor *q, const tide_tensor *k, const tide_tensor *v,
                          const tide_attention_attrs *a);
/* Returns the attributes that kernels take, with the default scale filled in. */
k_attention_attrs tide__attention_attrs_of(const tide_tensor *q, const tide_attention_attrs *a);
