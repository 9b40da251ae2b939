/* bsp_abort: its message is made here, for Rust has no functions with any number of arguments. */

#include "../include/bsp.h"

#include <stdarg.h>
#include <stdio.h>

/* Of the Rust part; does not return. */
extern void vmmc_bsp_abort_text(const char *text);

void bsp_abort(const char *format, ...)
{
    char text[1024] = "no message";
    if (format != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
    }
    vmmc_bsp_abort_text(text);
}
