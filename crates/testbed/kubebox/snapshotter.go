package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotscheme "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/scheme"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	common "github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/metrics"
	sidecar "github.com/kubernetes-csi/external-snapshotter/v8/pkg/sidecar-controller"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

const (
	// snapshotTimeout bounds the copy of one volume.
	snapshotTimeout = 10 * time.Minute
	// snapshotWorkers is how many snapshots are worked on at the same time: upstream's default.
	snapshotWorkers = 10
	// snapshotResync is upstream's default.
	snapshotResync = 15 * time.Minute
)

func runSnapshotter() int {
	flags := flag.NewFlagSet("snapshotter", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "path of the kubeconfig")
	dir := flags.String("dir", "", "directory that holds the volumes")
	kubelets := flags.String("kubelets", "", "NODE=DIRECTORY of each kubelet, separated by commas")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := serveSnapshots(ctx, *kubeconfig, store{dir: *dir}, strings.Split(*kubelets, ",")); err != nil {
		fmt.Fprintf(os.Stderr, "snapshotter: %v\n", err)
		return 1
	}
	return 0
}

// serveSnapshots runs the CSI driver for every kubelet, and the two controllers
// of kubernetes-csi/external-snapshotter, wired as in their own programs.
func serveSnapshots(ctx context.Context, kubeconfig string, store store, kubelets []string) error {
	for _, kubelet := range kubelets {
		node, dir, _ := strings.Cut(kubelet, "=")
		if err := serveNode(ctx, &nodeDriver{node: node, store: store}, dir); err != nil {
			return fmt.Errorf("serve the kubelet of %s: %w", node, err)
		}
	}
	client, snapshots, err := newClients(kubeconfig, "testbed-snapshotter")
	if err != nil {
		return err
	}
	// For the events of the two controllers.
	if err := snapshotscheme.AddToScheme(scheme.Scheme); err != nil {
		return fmt.Errorf("register the snapshot types: %w", err)
	}
	factory := snapshotinformers.NewSharedInformerFactory(snapshots, snapshotResync)
	v1 := factory.Snapshot().V1()
	core := informers.NewSharedInformerFactory(client, snapshotResync)
	// Group snapshots are switched off, so their informers and limiters are nil.
	controller := common.NewCSISnapshotCommonController(
		snapshots, client,
		v1.VolumeSnapshots(), v1.VolumeSnapshotContents(), v1.VolumeSnapshotClasses(),
		nil, nil, nil,
		core.Core().V1().PersistentVolumeClaims(), core.Core().V1().PersistentVolumes(), nil,
		metrics.NewMetricsManager(), snapshotResync,
		retryLimiter(), retryLimiter(), nil, nil,
		false, true, false,
	)
	csiSnapshotter := sidecar.NewCSISnapshotSideCarController(
		snapshots, client, driverName,
		v1.VolumeSnapshotContents(), v1.VolumeSnapshotClasses(),
		&snapshotter{client: client, store: store}, nil,
		snapshotTimeout, snapshotResync, snapshotPrefix, -1, "", -1, false,
		retryLimiter(), false, nil, nil, nil,
	)
	factory.Start(ctx.Done())
	core.Start(ctx.Done())
	go controller.Run(snapshotWorkers, ctx.Done(), nil)
	csiSnapshotter.Run(snapshotWorkers, ctx.Done(), nil)
	return nil
}

// retryLimiter retries sooner than upstream's one second: tests wait for it.
func retryLimiter() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 10*time.Second)
}

// snapshotter takes the place of the CSI controller service: csi-snapshotter
// calls it directly, because both are in one process.
type snapshotter struct {
	client kubernetes.Interface
	store  store
}

// CreateSnapshot copies the volume and returns when the copy is complete. The
// handle of a volume is the name of its PersistentVolume.
func (s *snapshotter) CreateSnapshot(ctx context.Context, name, volume string, _, _ map[string]string) (string, string, time.Time, int64, bool, error) {
	object, err := s.client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
	if err != nil {
		return "", "", time.Time{}, 0, false, err
	}
	made, err := s.store.takeSnapshot(ctx, volume, name)
	if err != nil {
		return "", "", time.Time{}, 0, false, fmt.Errorf("copy %s: %w", volume, err)
	}
	return driverName, name, made, object.Spec.Capacity.Storage().Value(), true, nil
}

func (s *snapshotter) DeleteSnapshot(_ context.Context, handle string, _ map[string]string) error {
	return s.store.removeSnapshot(handle)
}

// GetSnapshotStatus is called for a VolumeSnapshotContent that a user made for
// an existing snapshot.
func (s *snapshotter) GetSnapshotStatus(_ context.Context, handle string, _ map[string]string) (bool, time.Time, int64, string, error) {
	made, err := s.store.snapshotTime(handle)
	return err == nil, made, 0, "", err
}

// newClients makes a client for Kubernetes' own kinds and one for snapshots.
func newClients(kubeconfig, agent string) (kubernetes.Interface, snapshotclient.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	// Creating many claims at once must be as fast as creating one.
	config.QPS, config.Burst = 200, 400
	config.UserAgent = agent
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client: %w", err)
	}
	snapshots, err := snapshotclient.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client for snapshots: %w", err)
	}
	return client, snapshots, nil
}
