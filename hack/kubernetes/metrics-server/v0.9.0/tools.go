//go:build tools

// Package tools names the commands that ../../build builds from this module.
package tools

import (
	_ "sigs.k8s.io/metrics-server/cmd/metrics-server"
)
