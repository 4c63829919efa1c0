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
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const (
	// provisionerName is what a StorageClass names to be served from here.
	provisionerName = "testbed.clustereddatabase.io/volumes"
	// kindParameter is the StorageClass parameter that chooses how a volume is kept.
	kindParameter = "kind"
	// provisionedBy marks the volumes that were made, and so are removed, here.
	provisionedBy = "pv.kubernetes.io/provisioned-by"
	// selectedNode is set by the scheduler for classes that wait for a consumer.
	selectedNode = "volume.kubernetes.io/selected-node"
)

// provisioner makes, grows and removes the testbed's volumes. The queue holds
// "pvc/namespace/name" and "pv/name" keys and has one worker: the work is a
// mkdir or a mkfs of some tens of milliseconds, and one worker needs no locks.
type provisioner struct {
	client    kubernetes.Interface
	snapshots snapshotclient.Interface
	events    record.EventRecorder
	claims    corelisters.PersistentVolumeClaimLister
	volumes   corelisters.PersistentVolumeLister
	classes   storagelisters.StorageClassLister
	queue     workqueue.TypedRateLimitingInterface[string]
	store     store
	nodes     []string
}

func runProvisioner() int {
	flags := flag.NewFlagSet("provisioner", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "path of the kubeconfig")
	dir := flags.String("dir", "", "directory that holds the volumes")
	nodes := flags.String("nodes", "", "names of the nodes that can reach the volumes, separated by commas")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := serveVolumes(ctx, *kubeconfig, *dir, strings.Split(*nodes, ",")); err != nil {
		fmt.Fprintf(os.Stderr, "provisioner: %v\n", err)
		return 1
	}
	return 0
}

func serveVolumes(ctx context.Context, kubeconfig, dir string, nodes []string) error {
	client, snapshots, err := newClients(kubeconfig, "testbed-provisioner")
	if err != nil {
		return err
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	defer events.Shutdown()
	factory := informers.NewSharedInformerFactory(client, 0)
	claims := factory.Core().V1().PersistentVolumeClaims()
	volumes := factory.Core().V1().PersistentVolumes()
	classes := factory.Storage().V1().StorageClasses()
	p := &provisioner{
		client:    client,
		snapshots: snapshots,
		events:    events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: provisionerName}),
		claims:    claims.Lister(),
		volumes:   volumes.Lister(),
		classes:   classes.Lister(),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 10*time.Second)),
		store: store{dir: dir},
		nodes: nodes,
	}
	defer p.queue.ShutDown()
	for _, informer := range []cache.SharedIndexInformer{claims.Informer(), volumes.Informer()} {
		if _, err := informer.AddEventHandler(p.handler()); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	// A class that is made after its claims must wake those claims.
	_, err = classes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { p.enqueueAllClaims() }})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	klog.InfoS("serving volumes", "dir", dir, "nodes", nodes)
	go func() {
		<-ctx.Done()
		p.queue.ShutDown()
	}()
	for p.next(ctx) {
	}
	return nil
}

func (p *provisioner) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    p.enqueue,
		UpdateFunc: func(_, object any) { p.enqueue(object) },
	}
}

func (p *provisioner) enqueue(object any) {
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		p.queue.Add("pvc/" + o.Namespace + "/" + o.Name)
	case *corev1.PersistentVolume:
		p.queue.Add("pv/" + o.Name)
		// A claim that could not grow for want of its volume waits for this event.
		if ref := o.Spec.ClaimRef; ref != nil {
			p.queue.Add("pvc/" + ref.Namespace + "/" + ref.Name)
		}
	}
}

func (p *provisioner) enqueueAllClaims() {
	for _, object := range p.listClaims() {
		p.enqueue(object)
	}
}

func (p *provisioner) next(ctx context.Context) bool {
	key, closed := p.queue.Get()
	if closed {
		return false
	}
	defer p.queue.Done(key)
	if err := p.reconcile(ctx, key); err != nil {
		klog.ErrorS(err, "reconcile", "key", key)
		p.queue.AddRateLimited(key)
		return true
	}
	p.queue.Forget(key)
	return true
}

func (p *provisioner) reconcile(ctx context.Context, key string) error {
	parts := strings.SplitN(key, "/", 3)
	if parts[0] == "pv" {
		volume, err := p.volumes.Get(parts[1])
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return p.reclaim(ctx, volume)
	}
	claim, err := p.claims.PersistentVolumeClaims(parts[1]).Get(parts[2])
	if apierrors.IsNotFound(err) || (err == nil && claim.DeletionTimestamp != nil) {
		return nil
	}
	if err != nil {
		return err
	}
	class := p.classOf(claim)
	if class == nil {
		return nil
	}
	if claim.Spec.VolumeName == "" {
		err := p.provision(ctx, claim, class)
		if err != nil {
			p.events.Event(claim, corev1.EventTypeWarning, "ProvisioningFailed", err.Error())
		}
		return err
	}
	return p.expand(ctx, claim)
}

// classOf is the claim's class when that class is served from here.
func (p *provisioner) classOf(claim *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	if claim.Spec.StorageClassName == nil {
		return nil
	}
	class, err := p.classes.Get(*claim.Spec.StorageClassName)
	if err != nil || !isServed(class.Provisioner) {
		return nil
	}
	return class
}

// isServed tells whether volumes of this provisioner are made here.
func isServed(provisioner string) bool {
	return provisioner == provisionerName || provisioner == driverName
}

func (p *provisioner) deleteVolume(ctx context.Context, name string) error {
	err := p.client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
