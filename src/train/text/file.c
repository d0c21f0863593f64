/* Small files, whole. A file that grows while it is read is cut where it was when it was opened. */
#include "text/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_all(const char *path, int fd, char *buffer, size_t wanted, size_t *nbytes, struct fsdpck_error *err)
{
    while (*nbytes < wanted) {
        ssize_t n = read(fd, buffer + *nbytes, wanted - *nbytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fsdpck_error_sys(err, errno, path, "read");
        if (n == 0)
            break;
        *nbytes += (size_t)n;
    }
    buffer[*nbytes] = '\0';
    return 0;
}

int text_file_read(const char *path, size_t max_nbytes, char **out, size_t *nbytes, struct fsdpck_error *err)
{
    struct stat st;
    int rc = 0, fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO must not wait for a writer: it is refused below */
    char *buffer = NULL;
    *out = NULL;
    *nbytes = 0;
    if (fd < 0 || fstat(fd, &st))
        rc = fsdpck_error_sys(err, errno, path, "open");
    else if (!S_ISREG(st.st_mode))
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "this is no file");
    else if ((uint64_t)st.st_size > max_nbytes)
        rc = fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path, "%llu bytes; at most %zu are read", (unsigned long long)st.st_size, max_nbytes);
    else if (!(buffer = malloc((size_t)st.st_size + 1)))
        rc = fsdpck_error_nomem(err, (size_t)st.st_size);
    if (!rc)
        rc = read_all(path, fd, buffer, (size_t)st.st_size, nbytes, err);
    if (fd >= 0)
        close(fd);
    if (rc)
        free(buffer);
    else
        *out = buffer;
    return rc;
}
