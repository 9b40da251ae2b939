/* What goes wrong, by the first argument; the last process but one makes the mistake. */

#include <bsp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int area[2] = {0, 0}, wrong, value = 1;

    if (strcmp(what, "early") == 0)
        bsp_sync();
    bsp_begin(strcmp(what, "fewer") == 0 ? 2 : bsp_nprocs());
    wrong = bsp_pid() == bsp_nprocs() - 2;
    bsp_push_reg(area, sizeof area);
    bsp_sync();
    if (strcmp(what, "fewer") == 0)
        printf("one of %d\n", bsp_nprocs());
    if (wrong) {
        if (strcmp(what, "outside") == 0)
            bsp_put(0, &value, area, 5, sizeof value);
        if (strcmp(what, "negative") == 0)
            bsp_put(0, &value, area, -4, sizeof value);
        if (strcmp(what, "process") == 0)
            bsp_put(bsp_nprocs(), &value, area, 0, sizeof value);
        if (strcmp(what, "below") == 0)
            bsp_get(-1, area, 0, &value, sizeof value);
        if (strcmp(what, "unregistered") == 0)
            bsp_put(0, &value, &value, 0, sizeof value);
        if (strcmp(what, "null") == 0)
            bsp_put(0, NULL, area, 0, sizeof value);
        if (strcmp(what, "empty") == 0)
            bsp_move(&value, sizeof value);
        if (strcmp(what, "uneven") == 0)
            bsp_push_reg(&value, sizeof value);
        if (strcmp(what, "abort") == 0)
            bsp_abort("the answer is %d\n", 42);
        if (strcmp(what, "exit") == 0)
            exit(0);
        if (strcmp(what, "kill") == 0)
            raise(SIGKILL);
    }
    bsp_sync();
    bsp_end();
    if (strcmp(what, "late") == 0)
        bsp_sync();
    return 0;
}
