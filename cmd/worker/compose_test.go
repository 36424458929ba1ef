package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/rampmeter/rampmeter/worker"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// root is the repository, as seen from this package.
const root = "../.."

// composeFile is what these tests read of docker-compose.yml.
type composeFile struct {
	Services map[string]struct {
		Build     string
		Image     string
		Command   []string
		Volumes   []string
		DependsOn map[string]struct{ Condition string } `yaml:"depends_on"`
		Deploy    struct{ Replicas int }
		Health    struct{ Test []string } `yaml:"healthcheck"`
	}
	Volumes map[string]any
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(data, into))
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	var file composeFile
	readYAML(t, "docker-compose.yml", &file)
	return file
}

func TestComposeRefersToWhatExists(t *testing.T) {
	t.Parallel()
	file := readCompose(t)
	for name, service := range file.Services {
		assert.True(t, service.Build == "." || service.Image != "" && service.Build == "", name)
		for _, volume := range service.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if strings.HasPrefix(source, ".") {
				assert.FileExists(t, filepath.Join(root, source))
			} else {
				assert.Contains(t, file.Volumes, source)
			}
		}
		for dependency, is := range service.DependsOn {
			require.Contains(t, file.Services, dependency)
			if is.Condition == "service_healthy" {
				assert.NotEmpty(t, file.Services[dependency].Health.Test, dependency)
			}
		}
	}
	assert.Equal(t, 3, file.Services["worker"].Deploy.Replicas)
}

func TestComposeRunsTheWorker(t *testing.T) {
	t.Parallel()
	file := readCompose(t)
	service := file.Services["worker"]
	require.NotEmpty(t, service.Command)
	require.Equal(t, "worker", service.Command[0])
	o, err := parseOptions(service.Command[1:], env{}.get)
	require.NoError(t, err)

	conn, err := worker.ParseRedisURI(o.redis)
	require.NoError(t, err)
	host, _, err := net.SplitHostPort(conn.(asynq.RedisClientOpt).Addr)
	require.NoError(t, err)
	assert.Contains(t, file.Services, host)

	source := ""
	for _, volume := range service.Volumes {
		if from, to, _ := strings.Cut(volume, ":"); strings.TrimSuffix(to, ":ro") == o.config {
			source = from
		}
	}
	require.NotEmpty(t, source, "the policies file is not mounted")
	policies, err := readPolicies(filepath.Join(root, source))
	require.NoError(t, err)
	assert.NotNil(t, policies.PolicyFor(httprequest.TaskType))

	var prometheus struct {
		Scrape []struct {
			DNS []struct {
				Names []string
				Port  int
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "deploy/prometheus.yml", &prometheus)
	_, port, err := net.SplitHostPort(o.listen)
	require.NoError(t, err)
	assert.Equal(t, []string{"worker"}, prometheus.Scrape[0].DNS[0].Names)
	assert.Equal(t, port, strconv.Itoa(prometheus.Scrape[0].DNS[0].Port))
}

// TestImageHasWhatComposeRuns builds what the Dockerfile builds and asks each
// program for help after the arguments it is given: a program that does not know
// one of them ends with a usage error instead.
func TestImageHasWhatComposeRuns(t *testing.T) {
	t.Parallel()
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	build := regexp.MustCompile(`(?m)^RUN .*go build .*-o /out/ (.*)$`).FindStringSubmatch(string(dockerfile))
	require.NotNil(t, build, "the Dockerfile builds in another way")

	out := t.TempDir()
	args := []string{"build", "-o", out + string(filepath.Separator)}
	info, _ := debug.ReadBuildInfo()
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race") // as all packages have been compiled
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, strings.Fields(build[1])...)...)
	cmd.Dir = root
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, string(said))

	for name, service := range readCompose(t).Services {
		if service.Build == "" {
			continue
		}
		program := filepath.Join(out, service.Command[0])
		require.FileExists(t, program)
		said, err := exec.CommandContext(t.Context(), program, append(service.Command[1:], "-h")...).CombinedOutput()
		require.NoError(t, err, "%s: %s", name, said)
	}
}
