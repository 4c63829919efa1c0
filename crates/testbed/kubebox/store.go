package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// volumeKind says how a volume's data is kept.
type volumeKind string

const (
	// directoryKind is a plain directory: fast, but of no size of its own.
	directoryKind volumeKind = "directory"
	// loopKind is a file system of the claim's true size in a sparse file: ext4,
	// or xfs on a machine whose root may not grow a mounted ext4.
	loopKind volumeKind = "loop"
)

// capSysResource is the number of the capability that the kernel asks for
// before it grows a mounted ext4 (EXT4_IOC_RESIZE_FS). Growing an xfs takes
// only the right to mount.
const capSysResource = 24

// xfsMagic is XFS_SUPER_MAGIC of the kernel's linux/magic.h.
const xfsMagic = 0x58465342

// toolTimeout bounds one call of mkfs, mount, losetup or resize2fs. They take
// well under a second; a minute means a hung disk, and then to fail is better.
const toolTimeout = time.Minute

func parseKind(text string) (volumeKind, error) {
	switch kind := volumeKind(text); kind {
	case directoryKind, loopKind:
		return kind, nil
	default:
		return "", fmt.Errorf("storage class parameter %q is %q; it must be %q or %q", kindParameter, text, directoryKind, loopKind)
	}
}

// store keeps volumes below one directory: data/NAME is a volume's root,
// images/NAME.img the file behind a loop volume.
type store struct {
	dir string
}

func (s store) path(name string) string  { return filepath.Join(s.dir, "data", name) }
func (s store) image(name string) string { return filepath.Join(s.dir, "images", name+".img") }

// create makes a volume's storage, or finds it made, and returns its root.
func (s store) create(kind volumeKind, name string, size int64) (string, error) {
	path := s.path(name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", err
	}
	if kind == directoryKind {
		return path, nil
	}
	mounted, err := isMountPoint(path)
	if err != nil || mounted {
		return path, err
	}
	image := s.image(name)
	if err := os.MkdirAll(filepath.Dir(image), 0o700); err != nil {
		return "", err
	}
	if err := makeFileSystem(image, size); err != nil {
		return "", err
	}
	return path, tool("mount", "-o", "loop,noatime", image, path)
}

// makeFileSystem writes to a side file first, so that a file under the final
// name always holds a whole file system.
func makeFileSystem(image string, size int64) error {
	if _, err := os.Stat(image); err == nil {
		return nil
	}
	unfinished := image + ".new"
	file, err := os.Create(unfinished)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		return err
	}
	// ext4 without reserved blocks: the claim's size is the database's to fill.
	mkfs := []string{"mkfs.ext4", "-q", "-F", "-m", "0", unfinished}
	if !canGrowExt4() {
		// "Unsupported" is what its makers call less than 300 MB.
		mkfs = []string{"mkfs.xfs", "-q", "-f", "--unsupported", unfinished}
	}
	if err := tool(mkfs[0], mkfs[1:]...); err != nil {
		return err
	}
	return os.Rename(unfinished, image)
}

// canGrowExt4 tells whether this process may grow a mounted ext4.
func canGrowExt4() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if mask, found := strings.CutPrefix(line, "CapEff:"); found {
			bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && bits&(1<<capSysResource) != 0
		}
	}
	return false
}

// grow makes a volume at least size bytes large; a directory has no size.
func (s store) grow(name string, size int64) error {
	image := s.image(name)
	info, err := os.Stat(image)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() < size {
		if err := os.Truncate(image, size); err != nil {
			return err
		}
	}
	device, err := loopDevice(image)
	if err != nil {
		return err
	}
	if err := tool("losetup", "-c", device); err != nil {
		return err
	}
	var mounted syscall.Statfs_t
	if err := syscall.Statfs(s.path(name), &mounted); err != nil {
		return &fs.PathError{Op: "statfs", Path: s.path(name), Err: err}
	}
	if mounted.Type == xfsMagic {
		return tool("xfs_growfs", s.path(name))
	}
	return tool("resize2fs", device)
}

// remove ends a volume's storage; what is already gone is no error.
func (s store) remove(name string) error {
	path := s.path(name)
	mounted, err := isMountPoint(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if mounted {
		// Its loop device frees itself with the last mount.
		if err := tool("umount", path); err != nil {
			return err
		}
	}
	if err := os.Remove(s.image(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(path)
}

func loopDevice(image string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), toolTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "losetup", "-n", "-O", "NAME", "-j", image).Output()
	if err != nil {
		return "", fmt.Errorf("losetup -j: %w", err)
	}
	device, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if device == "" {
		return "", fmt.Errorf("no loop device holds %s", image)
	}
	return device, nil
}

// isMountPoint tells whether path is on another device than its parent.
func isMountPoint(path string) (bool, error) {
	var here, above syscall.Stat_t
	if err := syscall.Stat(path, &here); err != nil {
		return false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := syscall.Stat(filepath.Dir(path), &above); err != nil {
		return false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return here.Dev != above.Dev, nil
}

func tool(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), toolTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
