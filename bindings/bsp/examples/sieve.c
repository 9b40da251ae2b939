/* Primes by the sieve of Eratosthenes: each process has a block of the numbers. Those up to the
 * square root are sieved by all; counts, and the largest prime of each block, go by messages. */

#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>

enum { LIMIT = 1000000, PRIMES = 78498, LAST = 999983 };

int main(void)
{
    bsp_begin(bsp_nprocs());
    int pid = bsp_pid(), n = bsp_nprocs(), size = sizeof(int);
    long block = (LIMIT + n) / n, first = pid * block, end = first + block;
    if (end > LIMIT + 1)
        end = LIMIT + 1;
    char small[1001] = {0}, *crossed = calloc(block, 1);

    bsp_set_tagsize(&size);
    bsp_sync();
    for (long prime = 2; prime <= 1000; prime++) {
        if (small[prime])
            continue;
        for (long many = prime * prime; many <= 1000; many += prime)
            small[many] = 1;
        long from = (first + prime - 1) / prime * prime;
        if (from < prime * prime)
            from = prime * prime;
        for (long many = from; many < end; many += prime)
            crossed[many - first] = 1;
    }
    int count = 0, last = 0;
    for (long number = first; number < end; number++) {
        if (number >= 2 && !crossed[number - first]) {
            count++;
            last = (int)number;
        }
    }
    bsp_send(0, &count, &last, sizeof last);
    bsp_sync();
    if (pid == 0) {
        int messages, status, tag, found, all = 0, greatest = 0;
        bsp_qsize(&messages, NULL);
        if (messages != n)
            bsp_abort("%d messages of %d processes\n", messages, n);
        while (messages-- > 0) {
            bsp_get_tag(&status, &tag);
            bsp_move(&found, sizeof found);
            all += tag;
            if (found > greatest)
                greatest = found;
        }
        if (all != PRIMES || greatest != LAST)
            bsp_abort("%d primes up to %d, not %d; the last %d\n", all, LIMIT, PRIMES, greatest);
        printf("%d primes up to %d by %d processes, the last %d\n", all, LIMIT, n, greatest);
    }
    bsp_end();
    free(crossed);
    return 0;
}
