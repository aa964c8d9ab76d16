//go:build tools

// Package tools names the commands that ../../build builds from this module.
package tools

import (
	_ "github.com/argoproj/argo-cd/v3/cmd" // binary: argocd
)
