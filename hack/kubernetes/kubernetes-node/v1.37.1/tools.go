//go:build tools

// Package tools names the commands that ../../build builds from this module.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kubelet"
	_ "k8s.io/kubernetes/test/e2e/dra/test-driver" // binary: dra-test-driver
	_ "k8s.io/kubernetes/test/images/agnhost"
)
