//go:build tools

// Package tools names the commands that ../../build builds from this module.
package tools

import (
	_ "github.com/projectcalico/calico/cni-plugin/cmd/calico"
	_ "github.com/projectcalico/calico/felix/cmd/calico-felix"
)
