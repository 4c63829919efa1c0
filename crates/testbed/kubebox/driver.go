package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// driverName is the CSI driver of volumes that can be snapshotted, and the
// provisioner of their StorageClass.
const driverName = "csi.testbed.clustereddatabase.io"

// nodeDriver is the CSI driver for one kubelet. It has only what a kubelet
// calls: registration, and the node service without stages.
type nodeDriver struct {
	csi.UnimplementedNodeServer
	registration.UnsafeRegistrationServer
	node  string
	store store
}

// serveNode listens where the kubelet with the root directory dir looks for
// plugins. Registration and node service share the socket.
func serveNode(ctx context.Context, driver *nodeDriver, dir string) error {
	socket := filepath.Join(dir, "plugins_registry", "snapshots.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, driver)
	csi.RegisterNodeServer(server, driver)
	context.AfterFunc(ctx, server.Stop)
	go func() {
		if err := server.Serve(listener); err != nil {
			klog.ErrorS(err, "serve the kubelet", "node", driver.node)
		}
	}()
	return nil
}

func (d *nodeDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              driverName,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (d *nodeDriver) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	klog.InfoS("the kubelet answered", "node", d.node, "registered", status.PluginRegistered, "error", status.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *nodeDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *nodeDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume binds the volume's root to the target. The nodes share one
// kernel, so each of them reaches every volume.
func (d *nodeDriver) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	root, target := d.store.path(request.VolumeId), request.TargetPath
	if err := os.MkdirAll(target, 0o750); err != nil {
		return nil, err
	}
	published, err := isSameFile(root, target)
	if err == nil && !published {
		err = os.NewSyscallError("mount", syscall.Mount(root, target, "", syscall.MS_BIND, ""))
	}
	if err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *nodeDriver) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := syscall.Unmount(request.TargetPath, 0)
	// EINVAL: nothing is mounted there.
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
		return nil, os.NewSyscallError("unmount", err)
	}
	if err := os.Remove(request.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func isSameFile(one, other string) (bool, error) {
	first, err := os.Stat(one)
	if err != nil {
		return false, err
	}
	second, err := os.Stat(other)
	return err == nil && os.SameFile(first, second), err
}
