// The public header as C++11: it compiles and links with C linkage.
#include "tide/tide.h"

#include <cstring>

int main()
{
  tide_attention_attrs attrs;
  tide_attention_attrs_init(&attrs);
  return attrs.size == sizeof attrs && std::strstr(tide_abi_text(), "tide_ctx_new") ? 0 : 1;
}
