"""Direct gRPC calls of the processes of a running job, for debugging.

`locate_process` (local_process) finds a process of a run on this machine, `ProcessClient` (process_client)
lists and calls its methods, and `ServiceMethod` (methods) converts requests and replies from and to JSON.
Requires the packages of `kubealign[services]`.
"""
