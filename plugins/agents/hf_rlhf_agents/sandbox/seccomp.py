"""A seccomp filter that refuses system calls which no program of an agent needs.

The filter is a classic BPF program over `struct seccomp_data` (seccomp(2)), which bubblewrap loads.
Refused calls fail with EPERM. What remains is bounded by namespaces and limits.
"""

import platform
import struct

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF_LD, BPF_JMP, BPF_RET
_ANY_BIT = 0x45
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # 1 is EPERM
_UNKNOWN = 0x00050026  # ENOSYS: the C library then calls clone, whose flags can be seen
_NEW_USER = 0x10000000
_X32 = 0x40000000  # numbers of the x32 interface, which would go round the list

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE, _CLONE3 = (56, 220), 435
_CALLS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # Memory that belongs to no process.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
}
"""Name -> number on x86_64 and on aarch64."""


def seccomp_filter() -> bytes:
    """Return the filter for this machine. Raises OSError on other architectures."""
    machine = platform.machine()
    if machine not in _AUDIT:
        raise OSError(f"no seccomp filter for {machine}; known: {', '.join(_AUDIT)}")
    column = list(_AUDIT).index(machine)
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, _AUDIT[machine], then=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_JUMP_AT_LEAST, _X32, otherwise=1),
        _instruction(_RETURN, _REFUSE),
    ]
    for numbers in _CALLS.values():
        program.append(_instruction(_JUMP_EQUAL, numbers[column], otherwise=1))
        program.append(_instruction(_RETURN, _REFUSE))
    program += [
        _instruction(_JUMP_EQUAL, _CLONE3, otherwise=1),
        _instruction(_RETURN, _UNKNOWN),
        _instruction(_JUMP_EQUAL, _CLONE[column], otherwise=3),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _NEW_USER, otherwise=1),
        _instruction(_RETURN, _REFUSE),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
