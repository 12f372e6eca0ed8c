// The process that holds a pod's namespaces, and the node's own.
module kubealign.dev/tests/cluster/pause

go 1.25.0
