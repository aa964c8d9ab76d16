//go:build tools

// Package tools names the commands that ../../build builds from this module.
package tools

import (
	_ "github.com/versity/versitygw/cmd/versitygw"
)
