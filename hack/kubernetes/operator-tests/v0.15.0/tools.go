//go:build tools

// Package tools names the commands that ../../build builds from this module.
package tools

import (
	_ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
	_ "github.com/kubeflow/training-operator/cmd/training-operator.v1" // binary: training-operator
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "github.com/project-codeflare/appwrapper/cmd" // binary: appwrapper
	_ "sigs.k8s.io/jobset/test/e2e"
	_ "sigs.k8s.io/kueue/cmd/kueuectl" // binary: kubectl-kueue
	_ "sigs.k8s.io/kueue/test/e2e/singlecluster"
	_ "sigs.k8s.io/lws/test/e2e"
)
