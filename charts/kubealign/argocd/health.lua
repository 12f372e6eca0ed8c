-- Health of an AlignmentJob in Argo CD, as key resource.customizations.health.kubealign.dev_AlignmentJob of the
-- ConfigMap argocd-cm. The categories agree with kstatus, by which Flux and Helm judge: a job that runs is healthy,
-- so that an application need not wait for days.
local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is_true(type)
  return conditions[type] ~= nil and conditions[type].status == "True"
end

local function health(category, default)
  return {status = category, message = status.message or default}
end

-- The operator has not seen this version of the spec: the conditions are those of an earlier one.
if status.phase == nil or status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "waits for the operator"}
end
if is_true("Stalled") then
  return health("Degraded", conditions["Stalled"].message)
end
if status.phase == "Suspended" then
  return health("Suspended", "the job is suspended")
end
if status.phase == "Succeeded" or is_true("Ready") then
  return health("Healthy", "the job is " .. status.phase)
end
return health("Progressing", "the job is " .. status.phase)
