//go:build tools

// Package tools names the commands that ../../build builds from this module.
package tools

import (
	_ "helm.sh/helm/v4/cmd/helm"
)
