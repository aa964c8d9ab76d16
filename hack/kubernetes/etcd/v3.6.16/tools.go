//go:build tools

// Package tools names the commands that ../../build builds from this module.
package tools

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/server/v3" // binary: etcd
)
