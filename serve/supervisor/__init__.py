"""A small process between bertender and Triton, so that no server outlives its owner.

It starts the command of its arguments and waits. When its standard input closes (which also happens
when the owner is killed with SIGKILL), or at SIGTERM, it stops the command and everything that the
command started, once no request is without a response, and removes the workspace; SIGUSR1 ends the
waiting. When the command ends by itself, so does the supervisor, with the same exit status, and the
workspace stays for the owner to read the log in it. Shared memory whose name begins with
SHARED_MEMORY goes in either case: Triton leaves some when a model does not load. So do the empty
folders that Triton leaves in /tmp.

LOG is a file, to which both outputs of the command are appended, or `-` for standard output. A file
that grows beyond LOG_MAX_BYTES is copied to LOG.1 and emptied. The command writes to it itself, so
that its last words are there however it ends.

Triton neither reports nor replaces a Python stub that dies: it stays ready, and its requests wait
for ever. So the supervisor watches the command's own processes. When one has died and nobody has
asked for its exit status, as Triton does after it has unloaded a model, the command is ended with
status STUB_DIED. The same holds for the shell that Triton starts a stub with. With `--restart`, a
command that fails after the owner has written a line to standard input (it was ready) is started
again, after each of RESTART_DELAYS_S.

    python -I -S supervisor/__main__.py [--restart] [--lock DESCRIPTOR] WORKSPACE SHARED_MEMORY \\
        LOG LOG_MAX_BYTES STOP_TIMEOUT_S COMMAND...

The command inherits DESCRIPTOR, an open file that says that the workspace is in use.

It runs with nothing but the standard library and the files of this folder: a process of one thread
may safely set the parent-death signal between fork and exec, one that has loaded PyTorch may not.
"""
