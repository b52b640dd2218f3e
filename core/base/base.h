/* What the files of every layer use of this folder. */
#pragma once

#include <stdio.h>

#include "core/base/alloc.h"
#include "core/base/door.h"
#include "core/base/dtype.h"
#include "core/base/shape.h"
#include "core/base/status.h"
#include "core/base/trace.h"
