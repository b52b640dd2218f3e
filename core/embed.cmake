# cmake -DIN=file -DOUT=file -DNAME=function -DHEADER="what declares it" -P embed.cmake: C source of
# a function that returns the file's text.
# Bytes, not a string literal: no escaping, and no limit on the length of literals.
file(READ "${IN}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," rows "${hex}")
set(row "0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,")
string(REGEX REPLACE "(${row}${row})" "  \\1\n" rows "${rows}")
file(WRITE ${OUT} "/* Generated from a header. */
#include \"${HEADER}\"

static const unsigned char text[] = {
${rows}
  0
};

const char *${NAME}(void) { return (const char *)text; }
")
