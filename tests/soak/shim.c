/*
 * Faults of a disk and of a clock, for one process: preloaded, it fails or slows down calls on the files of a member's ledger, and shifts the wall clock.
 *
 * They are the files below DLEDGER_SHIM_UNDER. The file that DLEDGER_SHIM names is mapped; tests.soak.shim writes it, and has the same layout. A bad block
 * cannot be read, and a part of it cannot be written, until the whole of it has been written: so Linux does it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct control {
    int32_t armed, read_errno, read_us, write_errno, sync_errno, sync_us, rename_errno;
    int64_t bad_start, bad_end, clock_s;
    char bad_path[400];
};

static volatile struct control *control;
static const char *under;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DLEDGER_SHIM");
    under = getenv("DLEDGER_SHIM_UNDER");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) control = at;
    close(fd);
}

/* Whether a fault may hit this file; its path. */
static int is_ours(int fd, char *path, size_t size) {
    char link[64];
    if (!control || !under || !control->armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strncmp(path, under, strlen(under)) == 0;
}

static int is_bad(const char *path) {
    return control->bad_end && strcmp(path, (const char *)control->bad_path) == 0;
}

static int fails_to_read(int fd, size_t count, off_t offset) {
    char path[400];
    if (!is_ours(fd, path, sizeof path)) return 0;
    if (control->read_us) usleep(control->read_us);
    if (is_bad(path) && offset < control->bad_end && offset + (off_t)count > control->bad_start) return EIO;
    return control->read_errno;
}

static int fails_to_write(int fd, size_t count, off_t offset) {
    char path[400];
    if (!is_ours(fd, path, sizeof path)) return 0;
    if (control->write_errno) return control->write_errno;
    if (offset >= 0 && is_bad(path)) {
        off_t end = offset + (off_t)count;
        if (offset <= control->bad_start && end >= control->bad_end) control->bad_end = 0;
        else if (offset < control->bad_end && end > control->bad_start) return EIO;
    }
    return 0;
}

static int fails_to_sync(int fd) {
    char path[400];
    if (!is_ours(fd, path, sizeof path)) return 0;
    if (control->sync_us) usleep(control->sync_us);
    return control->sync_errno;
}

#define REAL(name, type) \
    static __typeof__(type) real; \
    if (!real) real = (__typeof__(type))dlsym(RTLD_NEXT, name)
#define FAIL_IF(call) do { int number = (call); if (number) { errno = number; return -1; } } while (0)

#define READS(name) \
    ssize_t name(int fd, void *data, size_t count, off_t offset) { \
        REAL(#name, ssize_t (*)(int, void *, size_t, off_t)); \
        FAIL_IF(fails_to_read(fd, count, offset)); \
        return real(fd, data, count, offset); \
    }
#define WRITES(name) \
    ssize_t name(int fd, const void *data, size_t count, off_t offset) { \
        REAL(#name, ssize_t (*)(int, const void *, size_t, off_t)); \
        FAIL_IF(fails_to_write(fd, count, offset)); \
        return real(fd, data, count, offset); \
    }
#define SYNCS(name) \
    int name(int fd) { \
        REAL(#name, int (*)(int)); \
        FAIL_IF(fails_to_sync(fd)); \
        return real(fd); \
    }
READS(pread)
READS(pread64)
WRITES(pwrite)
WRITES(pwrite64)
SYNCS(fsync)
SYNCS(fdatasync)

ssize_t write(int fd, const void *data, size_t count) {
    REAL("write", ssize_t (*)(int, const void *, size_t));
    FAIL_IF(fails_to_write(fd, count, -1));
    return real(fd, data, count);
}

#define RESERVES(name) \
    int name(int fd, off_t offset, off_t length) { \
        REAL(#name, int (*)(int, off_t, off_t)); \
        int number = fails_to_write(fd, 0, -1); \
        return number ? number : real(fd, offset, length); \
    }
RESERVES(posix_fallocate)
RESERVES(posix_fallocate64)

int rename(const char *from, const char *to) {
    REAL("rename", int (*)(const char *, const char *));
    FAIL_IF(control && under && control->armed && strncmp(to, under, strlen(under)) == 0 ? control->rename_errno : 0);
    return real(from, to);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    REAL("clock_gettime", int (*)(clockid_t, struct timespec *));
    int failed = real(id, at);
    if (!failed && id == CLOCK_REALTIME && control && control->armed) at->tv_sec += control->clock_s;
    return failed;
}
