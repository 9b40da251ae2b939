/* Every call of bsp.h, with what it promises; each process says "fine" at its end. */

#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(holds)                                                              \
    do {                                                                          \
        if (!(holds))                                                             \
            bsp_abort("%s, line %d: %s\n", __FILE__, __LINE__, #holds);           \
    } while (0)

static int from_main;

static void registrations(void)
{
    int pid = bsp_pid(), n = bsp_nprocs(), next = (pid + 1) % n, left = (pid + n - 1) % n;
    int area[4] = {0, 0, 0, 0}, other = 0, value = pid + 1;

    bsp_push_reg(area, sizeof area);
    bsp_sync();
    bsp_put(next, &value, area, sizeof(int), sizeof value);
    value = -1; /* put has copied */
    bsp_sync();
    CHECK(area[0] == 0 && area[1] == left + 1);

    /* A second registration of the address, shorter: it counts from the next sync on. */
    bsp_push_reg(area, sizeof(int));
    value = 7;
    bsp_put(next, &value, area, 3 * sizeof(int), sizeof value);
    bsp_sync();
    CHECK(area[3] == 7);
    /* Its end brings the first one back. */
    bsp_pop_reg(area);
    bsp_sync();
    value = 8;
    bsp_hpput(next, &value, area, 3 * sizeof(int), sizeof value);
    bsp_sync();
    CHECK(area[3] == 8);

    /* Nothing here: all but process 0 have NULL. */
    bsp_push_reg(pid == 0 ? &other : NULL, pid == 0 ? sizeof other : 0);
    bsp_sync();
    if (pid == 0) {
        value = 9;
        bsp_put(0, &value, &other, 0, sizeof value);
    }
    bsp_sync();
    CHECK(other == (pid == 0 ? 9 : 0));
    bsp_pop_reg(pid == 0 ? &other : NULL);
    bsp_pop_reg(area);
    bsp_sync();
}

static void puts_and_gets(void)
{
    int pid = bsp_pid(), n = bsp_nprocs(), next = (pid + 1) % n, left = (pid + n - 1) % n;
    int value = 100 + pid, got = -1, swapped = -1, mine = 200 + pid;

    bsp_push_reg(&value, sizeof value);
    bsp_sync();
    /* Gets read before puts write. */
    bsp_put(next, &mine, &value, 0, sizeof mine);
    bsp_get(next, &value, 0, &got, sizeof got);
    bsp_hpget(left, &value, 0, &swapped, sizeof swapped);
    CHECK(value == 100 + pid && got == -1);
    bsp_sync();
    CHECK(value == 200 + left && got == 100 + next && swapped == 100 + left);
    /* A get of a place that is put to and got into at once. */
    bsp_get(next, &value, 0, &value, sizeof value);
    bsp_sync();
    CHECK(value == 200 + pid);
    bsp_pop_reg(&value);
    bsp_sync();
}

static void messages(void)
{
    int pid = bsp_pid(), n = bsp_nprocs(), size = sizeof(int), i, status, count, bytes, length;
    int long_bytes = 100000, tag, seen = 0;
    char *text = malloc(long_bytes), *came = malloc(long_bytes);
    void *tag_at, *payload_at;

    bsp_set_tagsize(&size);
    CHECK(size == 0);
    bsp_send((pid + 1) % n, NULL, "untagged", 9); /* the old size still holds */
    bsp_sync();
    bsp_get_tag(&status, NULL);
    CHECK(status == 9);
    bsp_move(came, 4);
    CHECK(memcmp(came, "unta", 4) == 0);
    bsp_get_tag(&status, &tag);
    CHECK(status == -1);
    CHECK(bsp_hpmove(&tag_at, &payload_at) == -1);

    memset(text, 'a' + pid, long_bytes);
    for (i = 0; i < n; i++)
        bsp_send(i, &pid, text, i % 2 == 0 ? 3 : long_bytes);
    bsp_qsize(&count, &bytes);
    CHECK(count == 0 && bytes == 0);
    bsp_sync();
    length = pid % 2 == 0 ? 3 : long_bytes;
    bsp_qsize(&count, &bytes);
    CHECK(count == n && bytes == n * length);
    bsp_qsize(&count, NULL);
    for (i = 0; i < n; i++) {
        bsp_get_tag(&status, &tag);
        CHECK(status == length);
        if (i % 2 == 0) {
            bsp_move(came, long_bytes);
            CHECK(came[0] == 'a' + tag && came[length - 1] == 'a' + tag);
        } else {
            CHECK(bsp_hpmove(&tag_at, &payload_at) == length);
            CHECK(*(int *)tag_at == tag && ((char *)payload_at)[length - 1] == 'a' + tag);
            CHECK((size_t)payload_at % 8 == 0 && (size_t)tag_at % 8 == 0);
        }
        CHECK(!(seen >> tag & 1));
        seen |= 1 << tag;
    }
    bsp_send(pid, &pid, NULL, 0);
    bsp_sync();
    bsp_qsize(&count, &bytes);
    CHECK(count == 1 && bytes == 0);
    bsp_sync(); /* what was not taken is lost */
    bsp_qsize(&count, &bytes);
    CHECK(count == 0);
    size = 0;
    bsp_set_tagsize(&size);
    CHECK(size == sizeof(int));
    bsp_sync();
    free(text);
    free(came);
}

static void spmd(void)
{
    double begun, now;
    int pid;

    bsp_begin(bsp_nprocs());
    pid = bsp_pid();
    CHECK(pid >= 0 && pid < bsp_nprocs());
    /* Only process 0 has been in main. */
    CHECK(from_main == (pid == 0));
    begun = bsp_time();
    registrations();
    puts_and_gets();
    messages();
    now = bsp_time();
    CHECK(begun >= 0 && now >= begun && now < 3600);
    bsp_end();
    printf("fine\n");
}

int main(int argc, char **argv)
{
    bsp_init(spmd, argc, argv);
    from_main = 1;
    spmd();
    return 0;
}
