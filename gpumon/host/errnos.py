"""What an errno of a file, device or system call means to gpumon: one table for every port to the host."""

from __future__ import annotations

import errno

from gpumon.model import Reason

_REASONS = {
    errno.ENOENT: Reason.UNAVAILABLE,
    errno.ESRCH: Reason.UNAVAILABLE,  # the process behind a /proc file ended
    errno.ENODEV: Reason.UNAVAILABLE,  # the cgroup or device behind a kept descriptor was removed
    errno.ENOTDIR: Reason.UNAVAILABLE,
    errno.ENXIO: Reason.UNAVAILABLE,
    errno.ELOOP: Reason.UNAVAILABLE,  # O_NOFOLLOW met a link
    errno.ENAMETOOLONG: Reason.UNAVAILABLE,
    errno.EAGAIN: Reason.UNAVAILABLE,
    errno.EMFILE: Reason.UNAVAILABLE,
    errno.ENFILE: Reason.UNAVAILABLE,
    errno.ENOMEM: Reason.UNAVAILABLE,
    errno.EACCES: Reason.DENIED,
    errno.EPERM: Reason.DENIED,
    errno.EOPNOTSUPP: Reason.UNSUPPORTED,
    errno.EINVAL: Reason.UNSUPPORTED,  # e.g. a speed file of a device that has no link
    errno.ENOSYS: Reason.UNSUPPORTED,
    errno.ETIMEDOUT: Reason.TIMEOUT,
}


def reason_of(err: OSError) -> Reason:
    """Reason for a failed call; what is in no table (EIO and its like) is MALFORMED: it answered, unreadably."""
    return _REASONS.get(err.errno or 0, Reason.MALFORMED)
