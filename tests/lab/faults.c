/* Fail, cut short, delay, kill at or record the system calls of a process tree below one folder.

   Preloaded with LD_PRELOAD. It does nothing until a process attaches to a control file, by the
   variable LAB_CONTROL at its start or by lab_attach(). All processes that attach to one control file
   share its counters, so "the 17th write" means the 17th of the whole tree. tests/lab/control.py has
   the same structure. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN, WRITE, PWRITE, FSYNC, RENAME, MKDIR, UNLINK, FTRUNCATE, MMAP, LINK, READ, ALL, MALLOC };
enum { NOTHING, FAIL, SHORT, KILL, DIE, TEAR, DELAY, STOP };
enum { T_CREATE, T_WRITE, T_SYNC, T_RENAME, T_LINK, T_SYMLINK, T_UNLINK, T_MKDIR, T_RMDIR, T_SIZE };

struct control {
    uint32_t op, action;    /* what to do with the call */
    uint64_t number;        /* which call: 1 is the first; 0 is every one */
    uint32_t error, sticky; /* errno; whether all later calls fail as well */
    uint32_t delay, trace;  /* microseconds; whether to record */
    int64_t shift;          /* seconds that the clock jumps */
    uint64_t shift_after;   /* readings of the clock before it jumps */
    uint64_t clock;         /* readings of the clock */
    uint64_t fired;         /* how often the fault happened */
    uint64_t counts[16];    /* calls so far, by kind */
    char root[1024], trace_path[1024], place[1024];
};

static struct control *control;
static int trace_file = -1;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int lab_attach(const char *path) {
    control = NULL;
    if (trace_file >= 0) syscall(SYS_close, trace_file);
    trace_file = -1;
    if (!path || !*path) return 0;
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (file < 0) return -1;
    void *map = (void *)syscall(SYS_mmap, 0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (map == MAP_FAILED) return -1;
    struct control *made = map;
    if (made->trace) {
        int one = syscall(SYS_openat, AT_FDCWD, made->trace_path,
                          O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        trace_file = fcntl(one, F_DUPFD_CLOEXEC, 500); /* out of the way of what closes all files */
        syscall(SYS_close, one);
    }
    control = made;
    return 0;
}

__attribute__((constructor)) static void start(void) { lab_attach(getenv("LAB_CONTROL")); }

/* The absolute path of what a call names; empty if it cannot be known. */
static void find_path(int folder, const char *name, char *path) {
    path[0] = 0;
    if (!name) return;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return;
    }
    char before[PATH_MAX];
    ssize_t length;
    if (folder == AT_FDCWD) {
        if (!getcwd(before, sizeof before)) return;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        if ((length = readlink(link, before, sizeof before - 1)) < 0) return;
        before[length] = 0;
    }
    if (*name) {
        size_t used = strlen(before);
        if (used + strlen(name) + 2 > PATH_MAX) return;
        memcpy(path, before, used);
        path[used] = '/';
        strcpy(path + used + 1, name);
    } else {
        strcpy(path, before);
    }
}

static void find_file(int file, char *path) { find_path(file, "", path); }

static int is_inside(const char *path) {
    size_t length = strlen(control->root);
    return !strncmp(path, control->root, length) && (path[length] == '/' || !path[length]);
}

/* Count a call; returns what to do with it. Never returns if the process is killed here. */
static int meet(int op, const char *path) {
    if (!control || !is_inside(path)) return NOTHING;
    uint64_t number = __atomic_add_fetch(&control->counts[op], 1, __ATOMIC_SEQ_CST);
    uint64_t all = __atomic_add_fetch(&control->counts[ALL], 1, __ATOMIC_SEQ_CST);
    if (control->action == NOTHING) return NOTHING;
    if (control->op != ALL && control->op != (uint32_t)op) return NOTHING;
    if (control->op == ALL) number = all;
    uint64_t wanted = control->number;
    if (wanted && !(number == wanted || (control->sticky && number > wanted))) return NOTHING;
    if (__atomic_add_fetch(&control->fired, 1, __ATOMIC_SEQ_CST) == 1)
        snprintf(control->place, sizeof control->place, "%s", path);
    if (control->action == KILL) kill(0, SIGKILL);
    if (control->action == DIE) kill(getpid(), SIGKILL);
    if (control->action == STOP) {
        kill(getpid(), SIGSTOP);
        return NOTHING;
    }
    if (control->action == DELAY) {
        struct timespec wait = {control->delay / 1000000, control->delay % 1000000 * 1000L};
        nanosleep(&wait, NULL);
        return NOTHING;
    }
    return control->action;
}

#define MEET(op, path, failed) \
    do { \
        if (meet(op, path) == FAIL) { \
            errno = control->error; \
            return failed; \
        } \
    } while (0)

static void record(int what, const char *first, const char *second, int64_t place, const void *data,
                   uint64_t size) {
    if (trace_file < 0) return;
    if (!is_inside(first) && !(second && is_inside(second))) return;
    int saved = errno;
    struct { uint32_t what, first, second, zero; int64_t place; uint64_t size; } head = {
        what, strlen(first), second ? strlen(second) : 0, 0, place, size};
    struct iovec parts[4] = {{&head, sizeof head}, {(void *)first, head.first},
                             {(void *)second, head.second}, {(void *)data, size}};
    syscall(SYS_writev, trace_file, parts, 4);
    errno = saved;
}

/* Record the names in a folder that was synced: some libraries rename files without the C library. */
static void record_names(const char *link, const char *path) {
    static DIR *(*list)(const char *);
    if (!list) list = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    DIR *folder = list(link);
    char names[65536];
    size_t used = 0;
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        size_t length = strlen(entry->d_name);
        if (used + length + 1 > sizeof names) break;
        memcpy(names + used, entry->d_name, length);
        names[used + length] = '/';
        used += length + 1;
    }
    if (folder) closedir(folder);
    record(T_SYNC, path, NULL, -1, names, used);
}

/* Record the whole content of a file that was synced, however it was written. */
static void record_sync(int file, const char *path) {
    if (trace_file < 0 || !is_inside(path)) return;
    struct stat about;
    if (fstat(file, &about)) return;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    if (S_ISDIR(about.st_mode)) {
        record_names(link, path);
        return;
    }
    int copy = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    char *data = malloc(about.st_size + 1);
    int64_t got = 0, more;
    while (copy >= 0 && got < about.st_size &&
           (more = syscall(SYS_pread64, copy, data + got, about.st_size - got, got)) > 0)
        got += more;
    syscall(SYS_close, copy);
    record(T_SYNC, path, NULL, 0, data, got);
    free(data);
}

static int is_missing(const char *path) {
    struct stat about;
    return trace_file >= 0 && lstat(path, &about) != 0;
}

static void record_open(int file, const char *path, int flags, int missing) {
    if (file < 0) return;
    if ((flags & O_CREAT) && missing) record(T_CREATE, path, NULL, 0, NULL, 0);
    else if ((flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY) record(T_SIZE, path, NULL, 0, NULL, 0);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

#define OPENAT(folder, name, flags, mode) \
    char path[PATH_MAX]; \
    int missing = 0; \
    if (control) { \
        find_path(folder, name, path); \
        MEET(OPEN, path, -1); \
        missing = is_missing(path); \
    } \
    int file = syscall(SYS_openat, folder, name, (flags) | O_LARGEFILE, mode); \
    if (control) record_open(file, path, flags, missing); \
    return file

int open(const char *name, int flags, ...) { MODE(flags); OPENAT(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags); OPENAT(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE(flags); OPENAT(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE(flags); OPENAT(folder, name, flags, mode); }
int creat(const char *name, mode_t mode) { OPENAT(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *name, mode_t mode) { OPENAT(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* These are never interrupted on a local disk. */
#define IS_EINTR (control->action == FAIL && control->error == EINTR)

DIR *opendir(const char *name) {
    REAL(opendir);
    char path[PATH_MAX];
    if (control && !IS_EINTR) {
        find_path(AT_FDCWD, name, path);
        MEET(OPEN, path, NULL);
    }
    return real(name);
}

FILE *fopen(const char *name, const char *mode) {
    REAL(fopen);
    char path[PATH_MAX];
    if (control && !IS_EINTR) {
        find_path(AT_FDCWD, name, path);
        MEET(OPEN, path, NULL);
    }
    return real(name, mode);
}

FILE *fopen64(const char *name, const char *mode) {
    REAL(fopen64);
    char path[PATH_MAX];
    if (control && !IS_EINTR) {
        find_path(AT_FDCWD, name, path);
        MEET(OPEN, path, NULL);
    }
    return real(name, mode);
}

/* Let `call`, which uses `size`, transfer fewer bytes, or be killed in the middle. */
#define TRANSFER(op, file, size, call, placed) \
    char path[PATH_MAX]; \
    if (!control) return call; \
    find_file(file, path); \
    int action = meet(op, path); \
    if (action == FAIL) { \
        errno = control->error; \
        return -1; \
    } \
    if ((action == SHORT || action == TEAR) && size > 1) size /= 2; \
    ssize_t done = call; \
    if (action == TEAR) kill(0, SIGKILL); \
    if (done > 0 && trace_file >= 0) { placed; } \
    return done

static int64_t place_of(int file, ssize_t done) {
    return syscall(SYS_lseek, file, 0, SEEK_CUR) - done;
}

ssize_t write(int file, const void *data, size_t size) {
    TRANSFER(WRITE, file, size, syscall(SYS_write, file, data, size),
             record(T_WRITE, path, NULL, place_of(file, done), data, done));
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (!control) return syscall(SYS_writev, file, parts, count);
    find_file(file, path);
    if (!is_inside(path)) return syscall(SYS_writev, file, parts, count);
    for (int i = 0; i < count; i++) /* one part is a short count, which callers must expect */
        if (parts[i].iov_len) return write(file, parts[i].iov_base, parts[i].iov_len);
    return 0;
}

#define PWRITE_BODY \
    TRANSFER(PWRITE, file, size, syscall(SYS_pwrite64, file, data, size, place), \
             record(T_WRITE, path, NULL, place, data, done))
ssize_t pwrite(int file, const void *data, size_t size, off_t place) { PWRITE_BODY; }
ssize_t pwrite64(int file, const void *data, size_t size, off_t place) { PWRITE_BODY; }

ssize_t read(int file, void *data, size_t size) {
    TRANSFER(READ, file, size, syscall(SYS_read, file, data, size), );
}
#define PREAD_BODY TRANSFER(READ, file, size, syscall(SYS_pread64, file, data, size, place), )
ssize_t pread(int file, void *data, size_t size, off_t place) { PREAD_BODY; }
ssize_t pread64(int file, void *data, size_t size, off_t place) { PREAD_BODY; }

/* Copies inside the kernel: "not supported" makes callers read and write, which is seen here. */
ssize_t sendfile(int to, int from, off_t *place, size_t size) {
    if (!control) return syscall(SYS_sendfile, to, from, place, size);
    errno = EINVAL;
    return -1;
}
ssize_t sendfile64(int to, int from, off_t *place, size_t size) { return sendfile(to, from, place, size); }
ssize_t copy_file_range(int from, off_t *from_place, int to, off_t *to_place, size_t size, unsigned flags) {
    if (!control) return syscall(SYS_copy_file_range, from, from_place, to, to_place, size, flags);
    errno = ENOSYS;
    return -1;
}

#define SYNC(number) \
    char path[PATH_MAX]; \
    if (!control) return syscall(number, file); \
    find_file(file, path); \
    MEET(FSYNC, path, -1); \
    int status = syscall(number, file); \
    if (!status) record_sync(file, path); \
    return status
int fsync(int file) { SYNC(SYS_fsync); }
int fdatasync(int file) { SYNC(SYS_fdatasync); }

#define RESIZE(kind, call) \
    char path[PATH_MAX]; \
    if (!control) return call; \
    find_file(file, path); \
    MEET(FTRUNCATE, path, kind); \
    int status = call; \
    if (!status) record(T_SIZE, path, NULL, size, NULL, 0); \
    return status
int ftruncate(int file, off_t size) { RESIZE(-1, syscall(SYS_ftruncate, file, size)); }
int ftruncate64(int file, off_t size) { RESIZE(-1, syscall(SYS_ftruncate, file, size)); }
int truncate(const char *name, off_t size) {
    char path[PATH_MAX];
    if (!control) return syscall(SYS_truncate, name, size);
    find_path(AT_FDCWD, name, path);
    MEET(FTRUNCATE, path, -1);
    int status = syscall(SYS_truncate, name, size);
    if (!status) record(T_SIZE, path, NULL, size, NULL, 0);
    return status;
}
int truncate64(const char *name, off_t size) { return truncate(name, size); }

/* Returns its error instead of setting errno. It only ever extends files here. */
static int allocate(int file, off_t start, off_t length) {
    if (control) {
        char path[PATH_MAX];
        find_file(file, path);
        if (meet(FTRUNCATE, path) == FAIL) return control->error;
    }
    if (syscall(SYS_fallocate, file, 0, start, length)) return errno;
    if (control) {
        char path[PATH_MAX];
        find_file(file, path);
        record(T_SIZE, path, NULL, start + length, NULL, 0);
    }
    return 0;
}
int posix_fallocate(int file, off_t start, off_t length) { return allocate(file, start, length); }
int posix_fallocate64(int file, off_t start, off_t length) { return allocate(file, start, length); }

#define MMAP_BODY \
    if (control && file >= 0) { \
        char path[PATH_MAX]; \
        find_file(file, path); \
        MEET(MMAP, path, MAP_FAILED); \
    } \
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, place)
void *mmap(void *at, size_t size, int protection, int flags, int file, off_t place) { MMAP_BODY; }
void *mmap64(void *at, size_t size, int protection, int flags, int file, off_t place) { MMAP_BODY; }

/* Calls that name two places. */
#define TWO(op, what, call) \
    char path[PATH_MAX], other[PATH_MAX]; \
    if (!control) return call; \
    find_path(from_folder, from, path); \
    find_path(to_folder, to, other); \
    MEET(op, is_inside(path) ? path : other, -1); \
    int status = call; \
    if (!status) record(what, path, other, 0, NULL, 0); \
    return status
static int move(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    TWO(RENAME, T_RENAME, syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int rename(const char *from, const char *to) { return move(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return move(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return move(a, from, b, to, flags); }
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    TWO(LINK, T_LINK, syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int symlinkat(const char *target, int folder, const char *name) {
    char path[PATH_MAX];
    if (!control) return syscall(SYS_symlinkat, target, folder, name);
    find_path(folder, name, path);
    MEET(LINK, path, -1);
    int status = syscall(SYS_symlinkat, target, folder, name);
    if (!status) record(T_SYMLINK, path, NULL, 0, target, strlen(target));
    return status;
}
int symlink(const char *target, const char *name) { return symlinkat(target, AT_FDCWD, name); }

/* Calls that name one place. */
#define ONE(op, what, call) \
    char path[PATH_MAX]; \
    if (!control) return call; \
    find_path(folder, name, path); \
    MEET(op, path, -1); \
    int status = call; \
    if (!status) record(what, path, NULL, 0, NULL, 0); \
    return status
int mkdirat(int folder, const char *name, mode_t mode) {
    ONE(MKDIR, T_MKDIR, syscall(SYS_mkdirat, folder, name, mode));
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
int unlinkat(int folder, const char *name, int flags) {
    ONE(UNLINK, flags & AT_REMOVEDIR ? T_RMDIR : T_UNLINK, syscall(SYS_unlinkat, folder, name, flags));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

/* Large allocations, which can fail as well; small ones are not worth an error message. */
enum { LARGE = 8192 };
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);

static int has_memory(size_t size) {
    if (!control || control->op != MALLOC || size < LARGE) return 1;
    uint64_t number = __atomic_add_fetch(&control->counts[MALLOC], 1, __ATOMIC_SEQ_CST);
    if (control->action != FAIL || !control->number || number < control->number) return 1;
    if (number > control->number && !control->sticky) return 1;
    __atomic_add_fetch(&control->fired, 1, __ATOMIC_SEQ_CST);
    errno = ENOMEM;
    return 0;
}
void *malloc(size_t size) { return has_memory(size) ? __libc_malloc(size) : NULL; }
void *calloc(size_t count, size_t size) { return has_memory(count * size) ? __libc_calloc(count, size) : NULL; }
void *realloc(void *old, size_t size) { return has_memory(size) ? __libc_realloc(old, size) : NULL; }

/* A clock that jumps. */
static int64_t find_shift(void) {
    if (!control || !control->shift) return 0;
    uint64_t number = __atomic_add_fetch(&control->clock, 1, __ATOMIC_SEQ_CST);
    return number > control->shift_after ? control->shift : 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = syscall(SYS_clock_gettime, clock, now);
    if (!status && clock == CLOCK_REALTIME) now->tv_sec += find_shift();
    return status;
}
int gettimeofday(struct timeval *now, void *zone) {
    int status = syscall(SYS_gettimeofday, now, zone);
    if (!status) now->tv_sec += find_shift();
    return status;
}
time_t time(time_t *now) {
    struct timespec value;
    clock_gettime(CLOCK_REALTIME, &value);
    if (now) *now = value.tv_sec;
    return value.tv_sec;
}
