package main

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

func (p *provisioner) listClaims() []*corev1.PersistentVolumeClaim {
	claims, err := p.claims.List(labels.Everything())
	if err != nil {
		klog.ErrorS(err, "list claims")
	}
	return claims
}

// provision makes the storage of a claim and a volume that is already bound to
// that claim. Both steps can be repeated.
func (p *provisioner) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	waits := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	if waits && claim.Annotations[selectedNode] == "" {
		return nil
	}
	if mode := claim.Spec.VolumeMode; mode != nil && *mode != corev1.PersistentVolumeFilesystem {
		klog.InfoS("claim asks for a volume mode that the testbed does not have", "claim", klog.KObj(claim), "mode", *mode)
		return nil
	}
	name := "pvc-" + string(claim.UID)
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	kind, err := parseKind(class.Parameters[kindParameter])
	if err != nil {
		return err
	}
	snapshot, err := p.snapshotFor(ctx, claim, class)
	if err != nil {
		return err
	}
	volumes := p.client.CoreV1().PersistentVolumes()
	if snapshot != "" {
		// Not from the cache: a volume that exists may be in use, and must not be filled again.
		if _, err := volumes.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
	}
	path, err := p.store.create(kind, name, size.Value())
	if err != nil {
		return fmt.Errorf("make the storage of %s: %w", name, err)
	}
	if snapshot != "" {
		if err := p.store.restoreSnapshot(ctx, snapshot, name); err != nil {
			return fmt.Errorf("copy %s: %w", snapshot, err)
		}
	}
	_, err = volumes.Create(ctx, p.volumeFor(claim, class, name, path), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// snapshotFor is the handle of the snapshot that the claim's volume starts
// with; empty for an empty volume.
func (p *provisioner) snapshotFor(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (string, error) {
	source := claim.Spec.DataSourceRef
	if source == nil {
		return "", nil
	}
	group := ptr.Deref(source.APIGroup, "")
	if class.Provisioner != driverName || group != snapshotv1.GroupName || source.Kind != "VolumeSnapshot" {
		return "", fmt.Errorf("storage class %s cannot fill a volume from a %s of the group %q", class.Name, source.Kind, group)
	}
	snapshot, err := p.snapshots.SnapshotV1().VolumeSnapshots(claim.Namespace).Get(ctx, source.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	status := snapshot.Status
	if status == nil || !ptr.Deref(status.ReadyToUse, false) || status.BoundVolumeSnapshotContentName == nil {
		return "", fmt.Errorf("snapshot %s is not ready", source.Name)
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if status.RestoreSize != nil && size.Cmp(*status.RestoreSize) < 0 {
		return "", fmt.Errorf("requested size %s is less than the size %s of the snapshot %s", &size, status.RestoreSize, source.Name)
	}
	content, err := p.snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, *status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if content.Spec.Driver != driverName || content.Status == nil || content.Status.SnapshotHandle == nil {
		return "", fmt.Errorf("snapshot %s is of the driver %s, or has no handle", source.Name, content.Spec.Driver)
	}
	return *content.Status.SnapshotHandle, nil
}

func (p *provisioner) volumeFor(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, name, path string) *corev1.PersistentVolume {
	policy := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	mode := corev1.PersistentVolumeFilesystem
	source := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
	if class.Provisioner == driverName {
		source = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name}}
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{provisionedBy: class.Provisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage],
			},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: policy,
			StorageClassName:              class.Name,
			VolumeMode:                    &mode,
			PersistentVolumeSource:        source,
			ClaimRef: &corev1.ObjectReference{
				APIVersion:      "v1",
				Kind:            "PersistentVolumeClaim",
				Namespace:       claim.Namespace,
				Name:            claim.Name,
				UID:             claim.UID,
				ResourceVersion: claim.ResourceVersion,
			},
			// The nodes share one kernel, so each of them reaches every volume.
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{{
							Key:      corev1.LabelHostname,
							Operator: corev1.NodeSelectorOpIn,
							Values:   p.nodes,
						}},
					}},
				},
			},
		},
	}
}

// expand grows a bound volume to what its claim asks for: first the storage,
// then the volume's capacity, then the claim's status, so that nobody is
// promised space that is not there yet.
func (p *provisioner) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	volume, err := p.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isServed(volume.Annotations[provisionedBy]) || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	capacity := volume.Spec.Capacity[corev1.ResourceStorage]
	if wanted.Cmp(capacity) > 0 {
		if err := p.store.grow(volume.Name, wanted.Value()); err != nil {
			return fmt.Errorf("grow %s: %w", volume.Name, err)
		}
		grown := volume.DeepCopy()
		grown.Spec.Capacity[corev1.ResourceStorage] = wanted
		if _, err := p.client.CoreV1().PersistentVolumes().Update(ctx, grown, metav1.UpdateOptions{}); err != nil {
			return err
		}
		capacity = wanted
	}
	return p.reportCapacity(ctx, claim, capacity)
}

func (p *provisioner) reportCapacity(ctx context.Context, claim *corev1.PersistentVolumeClaim, capacity resource.Quantity) error {
	reported := claim.Status.Capacity[corev1.ResourceStorage]
	if reported.Cmp(capacity) >= 0 {
		return nil
	}
	updated := claim.DeepCopy()
	if updated.Status.Capacity == nil {
		updated.Status.Capacity = corev1.ResourceList{}
	}
	updated.Status.Capacity[corev1.ResourceStorage] = capacity
	updated.Status.Conditions = slices.DeleteFunc(updated.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimResizing || c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
	})
	_, err := p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	return err
}

// reclaim removes the storage and then the volume, once its claim is gone and
// if its policy says so.
func (p *provisioner) reclaim(ctx context.Context, volume *corev1.PersistentVolume) error {
	if !isServed(volume.Annotations[provisionedBy]) ||
		volume.Status.Phase != corev1.VolumeReleased ||
		volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
		volume.DeletionTimestamp != nil {
		return nil
	}
	if err := p.store.remove(volume.Name); err != nil {
		return fmt.Errorf("remove the storage of %s: %w", volume.Name, err)
	}
	return p.deleteVolume(ctx, volume.Name)
}
