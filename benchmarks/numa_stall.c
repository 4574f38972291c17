/* The watched process of numa_stall.py: touches argv[1] MiB of small pages in 100 mappings, then obeys stdin.
 * "R <phase> <seconds>": time mmap + touch + munmap of 1 MiB over and over. "P <phase>": print what that phase saw, as
 * "<iterations> <p50> <p99> <p99.9> <max>", microseconds. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PHASES 3
#define MOST 8000000u

static uint32_t *seen[PHASES];
static unsigned count[PHASES];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static char *map(size_t bytes) {
    char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

static void churn(int phase, double seconds) {
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    for (uint64_t start = now_ns(); start < end && count[phase] < MOST;) {
        char *p = map(1 << 20);
        p[0] = 1;
        munmap(p, 1 << 20);
        uint64_t stop = now_ns();
        uint64_t took = stop - start;
        seen[phase][count[phase]++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
        start = stop;
    }
}

static void print(int phase) {
    unsigned n = count[phase];
    uint32_t *v = seen[phase];
    if (!n) {
        puts("0 0 0 0 0");
        return;
    }
    qsort(v, n, sizeof *v, ascending);
    printf("%u %.1f %.1f %.1f %.1f\n", n, v[n / 2] / 1e3, v[(size_t)n * 99 / 100] / 1e3,
           v[(size_t)n * 999 / 1000] / 1e3, v[n - 1] / 1e3);
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? strtoul(argv[1], 0, 10) : 2048) << 20, part = bytes / 100 & ~(size_t)4095;
    for (int i = 0; i < 100; i++) {
        char *p = map(part * 2); /* half of each mapping stays untouched */
        madvise(p, part * 2, MADV_NOHUGEPAGE);
        mprotect(p, 4096, i & 1 ? PROT_READ | PROT_WRITE : PROT_READ | PROT_WRITE | PROT_EXEC); /* keep them apart */
        for (size_t o = 0; o < part; o += 4096) p[o] = 1;
    }
    for (int i = 0; i < PHASES; i++) {
        seen[i] = (uint32_t *)map(MOST * sizeof(uint32_t));
        madvise(seen[i], MOST * sizeof(uint32_t), MADV_HUGEPAGE);
    }
    puts("ready");
    fflush(stdout);
    char what;
    int phase;
    double seconds;
    while (scanf(" %c %d", &what, &phase) == 2 && phase >= 0 && phase < PHASES) {
        if (what == 'R' && scanf("%lf", &seconds) == 1) {
            churn(phase, seconds);
            puts("done");
        } else {
            print(phase);
        }
        fflush(stdout);
    }
    return 0;
}
