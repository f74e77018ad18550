/*
 * A preloaded library between a process and its disk. It records every change to the files below one folder, in the
 * order in which they were made, and everything written to stdout. It can kill the process, or fail, at a given sync.
 *
 *   TAP_FOLDER  the watched folder, as an absolute path
 *   TAP_RECORD  the file to record into; without it, nothing is recorded
 *   TAP_KILL    SIGKILL at the sync of this number: after the sync if TAP_AFTER is set, otherwise before it
 *   TAP_FAIL    EIO from the sync of this number on, or only for that one if TAP_ONCE is set; the data is then in the file
 *               for every reader, but no later sync brings it to the disk
 *   TAP_ONLY    counts only syncs of files with this text in their names
 *   TAP_QUOTA   while a file of this name exists, the quota is used up (EDQUOT) for files whose names end in TAP_END,
 *               and for the files with which the store probes for free space
 *
 * A change that it cannot record aborts the process: a record with a gap proves nothing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILES = 4096, PATH = 1024 };
enum { CREATE = 1, WRITE, LENGTH, SYNC, SYNC_FOLDER, UNLINK, RENAME, SAID, FAILED };

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
/* The name of each open file below the folder; empty for all other descriptors. */
static char names[FILES][PATH];
static char is_folder[FILES];
static const char *folder, *only, *quota, *quota_end;
static long kill_at, fail_at, syncs;
static int after, once, record = -1;

__attribute__((constructor)) static void begin(void) {
    folder = getenv("TAP_FOLDER");
    only = getenv("TAP_ONLY");
    quota = getenv("TAP_QUOTA");
    quota_end = getenv("TAP_END");
    const char *text = getenv("TAP_KILL");
    kill_at = text ? atol(text) : 0;
    text = getenv("TAP_FAIL");
    fail_at = text ? atol(text) : 0;
    after = getenv("TAP_AFTER") != NULL;
    once = getenv("TAP_ONCE") != NULL;
    text = getenv("TAP_RECORD");
    if (text) {
        int low = syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        /* Above the descriptors that the program gets. */
        record = syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, FILES);
        if (record < 0) record = low;
        else syscall(SYS_close, low);
    }
    /* Child processes are not watched. */
    unsetenv("LD_PRELOAD");
}

static int is_watched(const char *path) {
    if (!folder || strncmp(path, folder, strlen(folder)) != 0) return 0;
    size_t length = strlen(path);
    /* The write-ahead log's index is only shared memory, and a lock means nothing once its owner is gone. */
    return !(length > 4 && strcmp(path + length - 4, "-shm") == 0) &&
           !(length > 5 && strcmp(path + length - 5, ".lock") == 0);
}

static int watched(int fd) { return fd >= 0 && fd < FILES && names[fd][0]; }

static void fatal(const char *what) {
    syscall(SYS_write, 2, what, strlen(what));
    syscall(SYS_kill, getpid(), SIGABRT);
}

static uint64_t inode(int fd) {
    struct stat found;
    if (fstat(fd, &found) != 0) fatal("tap: a file cannot be looked at\n");
    return found.st_ino;
}

/* Writes one record: kind, inode, offset, length, bytes. */
static void tell(uint64_t kind, uint64_t file, uint64_t place, const void *bytes, uint64_t length) {
    if (record < 0) return;
    uint64_t head[4] = {kind, file, place, length};
    struct iovec parts[2] = {{head, sizeof head}, {(void *)bytes, length}};
    if (syscall(SYS_writev, record, parts, 2) != (long)(sizeof head + length)) fatal("tap: the record is full\n");
}

static int opened(const char *path, int flags, mode_t mode) {
    if (!is_watched(path)) return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    pthread_mutex_lock(&turn);
    int is_new = syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
    int fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    int error = errno;
    if (fd >= 0) {
        if (fd >= FILES || strlen(path) >= PATH) fatal("tap: too many files, or too long a name\n");
        strcpy(names[fd], path);
        struct stat found;
        is_folder[fd] = fstat(fd, &found) == 0 && S_ISDIR(found.st_mode);
        if (is_new) tell(CREATE, inode(fd), 0, path, strlen(path));
        else if (flags & O_TRUNC) tell(LENGTH, inode(fd), 0, NULL, 0);
    }
    pthread_mutex_unlock(&turn);
    errno = error;
    return fd;
}

#define OPEN(name)                                        \
    int name(const char *path, int flags, ...) {          \
        va_list rest;                                     \
        va_start(rest, flags);                            \
        mode_t mode = va_arg(rest, mode_t);               \
        va_end(rest);                                     \
        return opened(path, flags, mode);                 \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    pthread_mutex_lock(&turn);
    if (watched(fd)) names[fd][0] = 0;
    int done = syscall(SYS_close, fd);
    pthread_mutex_unlock(&turn);
    return done;
}

/* The caller holds `turn`. */
static int is_used_up(int fd) {
    if (!quota || !watched(fd) || syscall(SYS_faccessat, AT_FDCWD, quota, F_OK) != 0) return 0;
    size_t length = strlen(names[fd]), end = quota_end ? strlen(quota_end) : 0;
    return strstr(names[fd], ".room-") || (length >= end && strcmp(names[fd] + length - end, quota_end ? quota_end : "") == 0);
}

static ssize_t written(int fd, const void *bytes, size_t length, off_t place, int is_placed) {
    pthread_mutex_lock(&turn);
    if (is_used_up(fd)) {
        pthread_mutex_unlock(&turn);
        errno = EDQUOT;
        return -1;
    }
    if (!is_placed && watched(fd)) {
        if (syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND) fatal("tap: appending is not told\n");
        place = syscall(SYS_lseek, fd, 0, SEEK_CUR);
    }
    ssize_t done = is_placed ? syscall(SYS_pwrite64, fd, bytes, length, place) : syscall(SYS_write, fd, bytes, length);
    int error = errno;
    if (done > 0 && watched(fd)) tell(WRITE, inode(fd), place, bytes, done);
    if (done > 0 && fd == STDOUT_FILENO) tell(SAID, 0, 0, bytes, done);
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

ssize_t write(int fd, const void *bytes, size_t length) { return written(fd, bytes, length, 0, 0); }
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t place) { return written(fd, bytes, length, place, 1); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t place) {
    return written(fd, bytes, length, place, 1);
}

static int cut(int fd, off_t length) {
    pthread_mutex_lock(&turn);
    int done = syscall(SYS_ftruncate, fd, length);
    int error = errno;
    if (done == 0 && watched(fd)) tell(LENGTH, inode(fd), length, NULL, 0);
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

int ftruncate(int fd, off_t length) { return cut(fd, length); }
int ftruncate64(int fd, off64_t length) { return cut(fd, length); }

static int synced(int fd, long call) {
    if (!watched(fd)) return syscall(call, fd);
    pthread_mutex_lock(&turn);
    long number = !only || strstr(names[fd], only) ? ++syncs : 0;
    if (fail_at && (once ? number == fail_at : number >= fail_at)) {
        tell(FAILED, inode(fd), 0, NULL, 0);
        pthread_mutex_unlock(&turn);
        errno = EIO;
        return -1;
    }
    if (kill_at && number == kill_at && !after) syscall(SYS_kill, getpid(), SIGKILL);
    int done = syscall(call, fd);
    int error = errno;
    if (done == 0) tell(is_folder[fd] ? SYNC_FOLDER : SYNC, inode(fd), 0, NULL, 0);
    if (kill_at && number == kill_at) syscall(SYS_kill, getpid(), SIGKILL);
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int unlink(const char *path) {
    if (!is_watched(path)) return syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    pthread_mutex_lock(&turn);
    int done = syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    int error = errno;
    if (done == 0) tell(UNLINK, 0, 0, path, strlen(path));
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

int rename(const char *from, const char *to) {
    pthread_mutex_lock(&turn);
    int done = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    int error = errno;
    if (done == 0 && is_watched(from)) {
        char both[2 * PATH];
        int length = snprintf(both, sizeof both, "%s\n%s", from, to);
        tell(RENAME, 0, 0, both, length);
    }
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

/* Ways to change a file that the store does not use, and that are not recorded. */
#define UNTOLD(call) \
    if (watched(fd)) fatal("tap: " call " is not told\n");

ssize_t writev(int fd, const struct iovec *parts, int count) {
    UNTOLD("writev")
    return syscall(SYS_writev, fd, parts, count);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t place) {
    UNTOLD("pwritev")
    return syscall(SYS_pwritev, fd, parts, count, place, 0);
}
int fallocate(int fd, int mode, off_t place, off_t length) {
    UNTOLD("fallocate")
    return syscall(SYS_fallocate, fd, mode, place, length);
}
int posix_fallocate(int fd, off_t place, off_t length) {
    UNTOLD("posix_fallocate")
    return syscall(SYS_fallocate, fd, 0, place, length) == 0 ? 0 : errno;
}
