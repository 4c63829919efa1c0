// Command pause holds a pod's namespaces open: it does nothing until it is told
// to stop. It is linked statically, so that its image is this one file.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
	os.Exit(0)
}
